"""The C headers of the probes and their mirrors in Python say the same: layouts, kinds of calls, constants."""

import re
import subprocess

import numpy as np
import pytest

from iotwin.trace_store import syscalls
from iotwin.trace_store.raw import records
from iotwin.tracing_tools.backend_base import Scope
from iotwin.tracing_tools.backends import task_filter
from iotwin.tracing_tools.backends.per_cpu_buffers import LANE
from iotwin.tracing_tools.probes import BCC_SOURCE, text_with_headers
from tests.conftest import compile_c

PROBES = BCC_SOURCE.parent
MIRRORS = {
    "event": records.EVENT,
    "name": records.NAME_HEAD,
    "block_record": records.BLOCK,
    "gpu_call": records.GPU_CALL,
    "lane": LANE,
    "slot": np.dtype([("header", "<u4"), ("page", "<u4"), ("event", f"V{records.EVENT.itemsize - records.RING_HEADER_BYTES}")]),
}


def compiled_answers(directory, statements: str) -> list[str]:
    """The words that a C program of `statements` prints, which knows the probes' records and kinds."""
    source = directory / "asks.c"
    headers = "".join(f'#include "{PROBES}/{name}.h"\n' for name in ("records", "call_kinds"))
    source.write_text(f"#include <stddef.h>\n#include <stdio.h>\n{headers}int main(void) {{\n{statements}\nreturn 0; }}\n")
    program = compile_c(directory / "asks", source)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("name", MIRRORS)
def test_every_field_lies_where_the_mirror_reads_it(tmp_path, name):
    """Offset and size of each; in the records that go through a ring buffer after its 8 bytes."""
    layout = MIRRORS[name]
    before = 0 if name in ("lane", "slot") else records.RING_HEADER_BYTES
    fields = [field for field in layout.names if name in ("lane", "slot") or field not in ("header", "page")]
    told = f'struct {name} r; printf("%zu\\n", sizeof(r));' + "".join(
        f'printf("%zu %zu\\n", offsetof(struct {name}, {field}), sizeof(r.{field}));' for field in fields
    )
    expected = [layout.itemsize - before]
    for field in fields:
        expected += [layout.fields[field][1] - before, layout.fields[field][0].itemsize]
    assert [int(word) for word in compiled_answers(tmp_path, told)] == expected
    declared = re.search(rf"struct {name} \{{(.*?)\}};", (PROBES / "records.h").read_text(), re.DOTALL)[1]
    declared = re.sub(r"/\*.*?\*/|\[\d+\]", "", declared, flags=re.DOTALL)
    assert [part for part in re.findall(r"(\w+)(?=[,;])", declared) if part not in ("header", "page")] == [
        field for field in fields if field not in ("header", "page")
    ]


def test_numbers_are_their_mirrors(tmp_path):
    kinds = {kind.name: kind.value for kind in syscalls.Kind}
    operations = {name.upper(): number for name, number in syscalls.OTHER_OPS.items() if not name.startswith(("io_uring", "aio"))}
    operations |= {"URING": syscalls.OTHER_OPS["io_uring_read"], "AIO": syscalls.OTHER_OPS["aio_read"]}
    flags = {f"FLAG_{name}": getattr(records, f"RAW_FLAG_{name}") for name in ("DIRECT", "APPEND", "WRITABLE")}
    names = {name: getattr(records, name) for name in ("NAME_OPENED", "NAME_GIVEN", "NAME_FORK", "NAME_EXEC", "NAME_EXIT")}
    expected = kinds | operations | flags | names
    told = "".join(f'printf("%d\\n", {name});' for name in expected)
    packed = 'printf("%u %u\\n", packed_call(300, 200, 9000), flags_of(0100644, 040001));'
    words = [int(word) for word in compiled_answers(tmp_path, told + packed)]
    assert words == [*expected.values(), records.pack_call(300, 200, 9000), 8 | flags["FLAG_DIRECT"] | flags["FLAG_WRITABLE"]]


def test_the_filter_s_constants_are_packed_in_the_order_of_declaration():
    text = (PROBES / "tasks.h").read_text()
    declared = re.findall(r"const volatile (\w+) (\w+) SEC\(\"(.+)\"\)", text)
    assert [name for _, name, _ in declared] == list(task_filter.constants(Scope()))
    assert {section for _, _, section in declared} == {task_filter.SECTION}
    sizes = {"u64": 8, "s64": 8, "u32": 4, "s32": 4}
    scope = Scope(cgroup_id=1 << 40, cgroup_level=3, entered_by_exec=True)
    assert len(task_filter.packed_constants(scope)) == sum(sizes[type_] for type_, _, _ in declared)


def test_which_task_is_traced_is_decided_in_one_place():
    """Every program that asks has it from filter.h, and none decides by itself."""
    deciders = [
        path.name for path in PROBES.glob("*.[ch]") if re.search(r"^INLINE int is_traced\(.*\)\n\{", path.read_text(), re.M)
    ]
    assert deciders == ["filter.h"]
    assert '#include "filter.h"' in BCC_SOURCE.read_text()


def test_a_text_holds_each_header_once(tmp_path):
    (tmp_path / "one.h").write_text("int one;\n")
    (tmp_path / "two.h").write_text('#include "one.h"\nint two;\n')
    (tmp_path / "main.c").write_text('#include <stdio.h>\n#include "two.h"\n#include "one.h"\nint three;\n')
    text = text_with_headers(tmp_path / "main.c")
    assert text.split() == ["#include", "<stdio.h>", "int", "one;", "int", "two;", "int", "three;"]
    assert not re.search(r'^#include "', text_with_headers(BCC_SOURCE), re.MULTILINE)
