"""Which containers the kernel's log names as out of memory."""

import pytest

from iotwin.tracing_tools.targets import out_of_memory

_RECORD = "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/iotwin-1/{id},task_memcg=/iotwin-1/{id},task=sh,pid=7,uid=0\n"


@pytest.mark.parametrize(
    ("record", "found"),
    [(_RECORD.format(id="abc1"), True), (_RECORD.format(id="abd2"), False), ("6,1,2,-;eth0: abc1 renamed\n", False), ("", False)],
)
def test_a_record_of_the_container_counts(tmp_path, monkeypatch, record, found):
    (tmp_path / "log").write_text(record)
    monkeypatch.setattr(out_of_memory, "KERNEL_LOG", str(tmp_path / "log"))
    assert out_of_memory.was_killed_for_memory("abc1") is found


def test_without_a_log_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(out_of_memory, "KERNEL_LOG", str(tmp_path / "log"))
    assert out_of_memory.was_killed_for_memory("abc1") is None


@pytest.mark.root
def test_the_log_of_this_machine_is_read_to_its_end():
    assert out_of_memory.was_killed_for_memory("f" * 64) in (False, None)
