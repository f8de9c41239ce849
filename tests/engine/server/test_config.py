"""Settings from flags and files: names, types, units, and errors that name what is wrong."""

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fairlead_common.settings import docstrings
from fairlead_engine.__main__ import main
from fairlead_engine.commands.config_sources import add_arguments, from_arguments
from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.errors import ConfigError


def parse(*flags: str) -> tuple[EngineConfig, ServerConfig]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return from_arguments(parser.parse_args(flags))


def write(folder: Path, content: Any) -> str:
    path = folder / "engine.yaml"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("kind", [EngineConfig, ServerConfig])
def test_every_setting_says_what_it_means(kind: type) -> None:
    assert set(docstrings(kind)) == {field.name for field in fields(kind)}
    assert all(len(text) > 20 for text in docstrings(kind).values())


def test_flags_alone_configure_everything() -> None:
    engine, server = parse(
        "--model", "/m", "--max-num-seqs", "4", "--kv-cache-memory", "512Mi", "--no-enable-prefix-caching",
        "--port", "0", "--drain-timeout", "15m", "--drain-grace", "500ms",
    )  # fmt: skip
    assert (engine.model, engine.max_num_seqs, engine.kv_cache_memory) == ("/m", 4, 512 * 2**20)
    assert engine.enable_prefix_caching is False
    assert (server.port, server.drain_timeout, server.drain_grace) == (0, 900.0, 0.5)


def test_a_file_holds_the_same_names_and_flags_override_it(tmp_path: Path) -> None:
    path = write(tmp_path, "model: demo://dinghy\nserved-name: dinghy\nmax-num-seqs: 16\ngpu-memory-utilization: 1\n")
    engine, server = parse("--config", path, "--max-num-seqs", "8", "--host", "127.20.0.3")
    assert (engine.model, engine.name, engine.max_num_seqs) == ("demo://dinghy", "dinghy", 8)
    assert engine.gpu_memory_utilization == 1.0
    assert server.host == "127.20.0.3"


def test_a_json_file_is_read_too_and_null_means_the_default(tmp_path: Path) -> None:
    engine, _ = parse("--config", write(tmp_path, {"model": "/m", "max-num-seqs": None}))
    assert engine.max_num_seqs is None


def test_a_model_may_be_called_null(tmp_path: Path) -> None:
    assert parse("--config", write(tmp_path, {"model": "/m", "served-name": "null"}))[0].name == "null"
    assert parse("--config", write(tmp_path, {"model": "/m", "served-name": None}))[0].name == "m"


def test_the_served_name_defaults_to_the_last_part_of_the_model() -> None:
    assert parse("--model", "demo://dinghy")[0].name == "dinghy"
    assert parse("--model", "/models/llama/")[0].name == "llama"


@pytest.mark.parametrize(
    ("content", "field", "says"),
    [
        ({"model": "/m", "max-num-seq": 4}, "max-num-seq", "did you mean max-num-seqs?"),
        ({"model": "/m", "max_num_seqs": 4}, "max_num_seqs", "did you mean max-num-seqs?"),
        ({"model": "/m", "zzz": 4}, "zzz", "known settings"),
        ({"model": "/m", "max-num-seqs": "many"}, "max_num_seqs", "must be a whole number"),
        ({"model": "/m", "max-num-seqs": 1.5}, "max_num_seqs", "must be a whole number"),
        ({"model": "/m", "max-num-seqs": True}, "max_num_seqs", "must be a whole number"),
        ({"model": "/m", "max-num-seqs": 0}, "max_num_seqs", "at least 1"),
        ({"model": "/m", "block-size": 0}, "block_size", "from 1 to 1024"),
        ({"model": "/m", "dtype": "fp8"}, "dtype", "auto, float32"),
        ({"model": "/m", "kv-cache-dtype": "int4"}, "kv_cache_dtype", "auto, fp8, int8"),
        ({"model": "/m", "quantization": "awq"}, "quantization", "int8, int8-weight-only, int4-weight-only, fp8"),
        ({"model": "/m", "device": "tpu"}, "device", "auto, cpu, cuda"),
        ({"model": "/m", "attention-backend": "flash"}, "attention_backend", "auto, cpu_spans, block_tables"),
        ({"model": "/m", "gpu-memory-utilization": 1.5}, "gpu_memory_utilization", "from 0.01 to 1.0"),
        ({"model": "/m", "drain-timeout": "soon"}, "drain_timeout", "followed by one of ms, s, m, h"),
        ({"model": "/m", "body-timeout": "0s"}, "body_timeout", "from 0.1 to 3600.0"),
        ({"model": "/m", "kv-cache-memory": "2Xi"}, "kv_cache_memory", "Mi"),
        ({"model": "/m", "port": 70000}, "port", "from 0 to 65535"),
        ({"model": "/m", "port": None}, "port", "must have a value"),
        ({"model": "/m", "enable-prefix-caching": "perhaps"}, "enable_prefix_caching", "true or false"),
        ({"model": "/m", "log-level": "loud"}, "log_level", "debug"),
        ({"model": "/m", "num-threads": 0}, "num_threads", "from 1 to 4096"),
        ({"model": "/m", "num-threads": 10**9}, "num_threads", "from 1 to 4096"),
        ({"model": "/m", "max-num-batched-tokens": 10**30}, "max_num_batched_tokens", "2^63"),
        ({"model": "/m", "block-size": 10**400}, "block_size", "2^63"),
        ({"model": "/m", "max-num-seqs": 64, "max-num-batched-tokens": 32}, "max_num_batched_tokens", "max-num-seqs"),
        ({"model": ""}, "model", "is empty"),
        ({}, "model", "is not given"),
        ([1], "config", "must hold a mapping"),
        ("model: [", "config", "neither YAML nor JSON"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_with_advice(tmp_path: Path, content: Any, field: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("--config", write(tmp_path, content))
    assert caught.value.field == field
    assert says in caught.value.message


def test_a_config_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        parse("--config", str(tmp_path / "nowhere.yaml"))


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_numbers_that_are_not_finite_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse("--model", "/m", f"--gpu-memory-utilization={text}")


def test_limits_depend_on_the_device_where_they_are_not_given() -> None:
    on_cpu, on_cuda = EngineConfig(model="/m").for_device("cpu"), EngineConfig(model="/m").for_device("cuda:0")
    assert (on_cpu.max_num_seqs, on_cpu.max_num_batched_tokens, on_cpu.max_num_queued_tokens) == (32, 512, 1024)
    assert (on_cuda.max_num_seqs, on_cuda.max_num_batched_tokens, on_cuda.max_num_queued_tokens) == (256, 8192, 16384)


def test_a_default_never_contradicts_a_given_limit() -> None:
    assert EngineConfig(model="/m", max_num_batched_tokens=8).for_device("cpu").max_num_seqs == 8
    assert EngineConfig(model="/m", max_num_seqs=1000).for_device("cpu").max_num_batched_tokens == 1000


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["serve", "demo://dinghy"], "did you mean --model demo://dinghy?); see fairlead-engine serve --help"),
        (["serve", "--served-model-name=x"], "did you mean --served-name?"),
        (["compare", "--no-such-flag"], "the following arguments are required: --model"),
        (["quantize", "--model", "m", "--out", "o", "--format", "int8", "--methods", "rtn"], "did you mean --method?"),
        (["serve", "--no-such-flag"], "unrecognized arguments: --no-such-flag; see fairlead-engine serve --help"),
    ],
)
def test_a_wrong_command_line_is_told_what_was_meant(command: list[str], says: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(command)
    assert says in json.loads(capsys.readouterr().err)["message"]
