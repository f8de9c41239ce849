"""What fits: context length and KV blocks against model and memory, and the sentences when it does not."""

from pathlib import Path

import pytest

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.cache_size import choose_max_model_len, choose_num_blocks
from fairlead_engine.core.memory import format_bytes, free_memory
from fairlead_engine.errors import ConfigError, KVCacheTooSmall

KIB = 1024
GIB = 1024**3


def config(**changes: object) -> EngineConfig:
    return EngineConfig(model="folder", **changes)  # type: ignore[arg-type]


def test_the_context_is_the_models_unless_configured() -> None:
    assert choose_max_model_len(config(), 2048) == 2048
    assert choose_max_model_len(config(max_model_len=100), 2048) == 100


@pytest.mark.parametrize("length", [2049, 1])
def test_a_context_that_cannot_be_is_refused_by_name(length: int) -> None:
    with pytest.raises(ConfigError, match="max-model-len"):
        choose_max_model_len(config(max_model_len=length), 2048)


def test_configured_memory_becomes_whole_blocks() -> None:
    chosen = choose_num_blocks(
        config(kv_cache_memory=1000 * KIB), device="cpu", bytes_per_block=3 * KIB, max_model_len=64
    )
    assert chosen == 333


def test_too_little_memory_names_the_settings_and_the_longest_length() -> None:
    with pytest.raises(KVCacheTooSmall) as raised:
        choose_num_blocks(config(kv_cache_memory=10 * KIB), device="cpu", bytes_per_block=KIB, max_model_len=2048)
    assert raised.value.reason == "NotEnoughMemory"
    for part in ("max-model-len to at most 160", "kv-cache-memory to at least 131072", "2048 tokens needs 128 KiB"):
        assert part in raised.value.message


def test_no_shorter_length_is_offered_when_not_even_one_block_fits() -> None:
    with pytest.raises(KVCacheTooSmall) as raised:
        choose_num_blocks(config(kv_cache_memory=10), device="cpu", bytes_per_block=KIB, max_model_len=2048)
    assert "set max-model-len" not in raised.value.message


def test_without_configuration_a_cpu_takes_at_most_a_gibibyte() -> None:
    chosen = choose_num_blocks(config(), device="cpu", bytes_per_block=KIB, max_model_len=64)
    assert 4 < chosen <= GIB // KIB


def fake_machine(root: Path, *, available_kib: int, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available_kib} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_free_memory_is_the_machines_without_a_limit(tmp_path: Path) -> None:
    root = fake_machine(tmp_path, available_kib=5000, cgroup="0::/\n", files={"memory.max": "max\n"})
    assert free_memory(root) == 5000 * KIB


def test_free_memory_counts_a_container_limit_and_not_its_reclaimable_cache(tmp_path: Path) -> None:
    files = {"memory.max": "1000000\n", "memory.current": "700000\n", "memory.stat": "anon 1\ninactive_file 200000\n"}
    root = fake_machine(tmp_path, available_kib=5000, cgroup="0::/\n", files=files)
    assert free_memory(root) == 500_000


def test_free_memory_is_bounded_by_every_enclosing_group(tmp_path: Path) -> None:
    files = {
        "pods/memory.max": "900000\n",
        "pods/memory.current": "850000\n",
        "pods/one/memory.max": "max\n",
        "pods/one/memory.current": "10\n",
    }
    root = fake_machine(tmp_path, available_kib=5000, cgroup="0::/pods/one\n", files=files)
    assert free_memory(root) == 50_000


def test_free_memory_reads_version_one_groups(tmp_path: Path) -> None:
    files = {"memory/memory.limit_in_bytes": "800000\n", "memory/memory.usage_in_bytes": "300000\n"}
    cgroup = "5:cpu,cpuacct:/x\n4:memory:/\n"
    root = fake_machine(tmp_path, available_kib=5000, cgroup=cgroup, files=files)
    assert free_memory(root) == 500_000


def test_free_memory_is_never_negative(tmp_path: Path) -> None:
    files = {"memory.max": "10\n", "memory.current": "20\n"}
    assert free_memory(fake_machine(tmp_path, available_kib=1, cgroup="0::/\n", files=files)) == 0


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20, "1 MiB"), (5 * 2**30, "5 GiB")]
)
def test_bytes_are_written_as_people_do(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
