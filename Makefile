# Two commands for a newcomer: make run, make test. The others are for whoever works on iotwin.
.PHONY: run test setup lint bare perf clean

run: setup
	.venv/bin/iotwin demo -o demo --force

test:
	./setup.sh test
	.venv/bin/python -m pytest -rs -n 2 --max-worker-restart 0

setup:
	./setup.sh run

lint:
	./setup.sh test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bare:
	RELEASE=$(RELEASE) tests/bare/bare.sh

perf:
	./setup.sh test
	.venv/bin/python -m tests.perf

clean:
	rm -rf .venv .setup demo
