#!/usr/bin/env bash
# The original's script, with iotwin's commands: workloads/dtr/reproduce_simrd.sh baseline [skip-ilp] | simrd | plot.
# The environment variable LOGS names the logs (default: data/*.log).
set -euo pipefail
root=$(dirname "$(readlink -f "$0")")/../..
. "$root/common/environment.sh"
mode=${1:-}
solvers=chen-sqrt,chen-sqrt-linear,chen-greedy,chen-greedy-linear,griewank,checkpoint-all,checkpoint-last
case $mode in
    baseline | baselines) [ "${2:-}" = skip-ilp ] || solvers=$solvers,ilp,lp-bound,lp-round ;;
    simrd) solvers=dtr:DTR,dtr:DTREqClass,dtr:DTRLocal,dtr:MSPS,dtr:LRU,dtr:LargestStorage,dtr:RandomStorage ;;
    plot) exec iotwin dtr plot data/sweep -o data/pareto.pdf ;;
    *) echo "usage: workloads/dtr/reproduce_simrd.sh baseline [skip-ilp] | simrd | plot" >&2; exit 2 ;;
esac
mkdir -p data/budget_sweep
# shellcheck disable=SC2086 # the lists are meant to split
for log in ${LOGS:-data/*.log}; do
    name=$(basename "$log" .log)
    iotwin dtr static "$log" --budget "${BUDGETS:?set BUDGETS, such as 4GB,8GB}" --solver "$solvers" --json >"data/budget_sweep/$name-$mode.json"
done
