"""`fairlead check`: whether models fit what their replicas get, before anything is scheduled. No cluster is asked."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fairlead.api.llmdeployment import EngineType, LLMDeployment
from fairlead.cli.check_inputs import find_config, read_config, read_deployments, read_settings
from fairlead.cli.options import UsageError, tell
from fairlead.fit.fit_check import Fit, Verdict, assumed, check, extras, size
from fairlead.fit.memory_need import EngineChoice
from fairlead.fit.model_shape import read_shape
from fairlead.fit.remedies import Remedy, remedies
from fairlead.fit.replica_memory import other_profiles, replica_memory
from fairlead.manifests.source import CannotBuild
from fairlead.operator_settings import OperatorSettings
from fairlead_protocol.models.load_errors import ModelLoadError
from fairlead_protocol.models.model_config import ModelConfig

_FITS, _DOES_NOT, _CANNOT_KNOW = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--filename", action="append", required=True, metavar="FILE",
        help="LLMDeployments, in one or several documents; - = standard input; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--config", metavar="PLACE",
        help="the model's config.json, its folder, or hf://ORGANISATION/NAME[@REVISION] to ask the hub (HF_ENDPOINT, "
        "HF_TOKEN); where the catalogue and this machine do not have it",
    )  # fmt: skip
    parser.add_argument(
        "--profiles", type=Path, metavar="FILE",
        help="the operator's settings, or values of the chart, with `profiles:` (default: the chart's)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", choices=["json"], help="for other programs (default: tables)")


def run(args: argparse.Namespace) -> int:
    """0 where all fit; 1 where one does not; 2 for bad input, and where nothing can be known."""
    try:
        settings = read_settings(args.profiles)
        deployments = read_deployments(args.filename)
        given = None if args.config is None else read_config(args.config)
        if given is not None and len({each.spec.model.source for each in deployments}) > 1:
            raise UsageError("--config is of one model, and there are several", "check them one by one")
    except UsageError as error:
        tell(error)
        return _CANNOT_KNOW
    told, worst = [], _FITS
    for deployment in deployments:
        try:
            found, where = _checked(deployment, settings, given)
        except UsageError as error:
            tell(error)
            worst = _CANNOT_KNOW
            continue
        others = remedies(found, other_profiles(deployment, settings))
        worst = max(worst, _status(found))
        if args.output == "json":
            told.append(_as_json(deployment, found, others, where))
        else:
            _print(deployment, found, others, where)
    if args.output == "json":
        print(json.dumps(told, indent=2))
    return worst


def _status(found: Fit) -> int:
    if found.verdict is Verdict.MEMORY_UNKNOWN:
        return _CANNOT_KNOW
    return _FITS if found.verdict is Verdict.FITS else _DOES_NOT


def _checked(
    deployment: LLMDeployment, settings: OperatorSettings, given: tuple[object, str] | None
) -> tuple[Fit, str]:
    """And where the configuration is from. Raises UsageError, naming the field."""
    name, engine = deployment.metadata.name, deployment.spec.engine
    if engine.type is not EngineType.FAIRLEAD:
        sentence = f"{name}: engine.type is {engine.type}, which lays out memory its own way"
        raise UsageError(sentence, "leave engine.type out to see what Fairlead's engine would take")
    try:
        config, where = given or find_config(deployment.spec.model.source)
        shape = read_shape(config)
        choice, memory = EngineChoice.of(deployment.spec), replica_memory(deployment, settings)
        return check(shape, choice, memory, _draft(choice)), where
    except UsageError as error:
        raise UsageError(f"{name}: {error}", error.hint) from error
    except CannotBuild as error:
        raise UsageError(f"{name}: {error.message}", "--profiles names the operator's settings") from error
    except (ModelLoadError, ValueError) as error:
        raise UsageError(f"{name}: {error}", "nothing can be said of whether it fits") from error


def _draft(choice: EngineChoice) -> ModelConfig | None:
    """Of the model that guesses tokens; None = there is none, or its config.json is not at hand."""
    if choice.draft is None:
        return None
    try:
        return read_shape(find_config(choice.draft)[0])
    except UsageError:
        return None
    except ModelLoadError as error:
        raise UsageError(f"engine.speculative.source: {error}", "nothing can be said of whether it fits") from error


def _print(deployment: LLMDeployment, found: Fit, others: tuple[Remedy, ...], where: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    name, source = deployment.metadata.name, deployment.spec.model.source
    table = Table("what", "how much", title=f"{name}: {source}", title_justify="left", show_header=False)
    for row in _rows(found, where):
        table.add_row(*row)
    console.print(table)
    verdict = "fits" if found.verdict is Verdict.FITS else f"does not fit ({found.verdict})"
    if found.verdict is Verdict.MEMORY_UNKNOWN:
        verdict = "cannot be known"
    elif found.verdict is Verdict.FEWER_SEQUENCES:
        verdict = "fits in part (FewerSequences)"
    console.print(f"{name}: {verdict}: {found.message}", markup=False)
    if others:
        console.print("what would fit:", markup=False)
        for remedy in others:
            console.print(f"  spec.{remedy.told}", markup=False)
    for sentence in assumed(found):
        console.print(f"note: {sentence}", markup=False)


def _rows(found: Fit, where: str) -> list[tuple[str, str]]:
    shape, need, choice = found.shape, found.need, found.choice
    each = "" if choice.ranks == 1 else f", on each of {choice.ranks} ranks"
    memory = "not known" if found.memory.per_rank is None else size(found.memory.per_rank)
    rows = [
        ("model", f"{shape.architecture}, {_count(shape.num_parameters)} parameters (config: {where})"),
        ("download", size(shape.stored_bytes)),
        ("memory", f"{memory}, {found.memory.device} ({found.memory.name})"),
        ("weights", f"{size(need.weights)}{each}"),
        *((what, f"{size(number)}{each}") for what, number in extras(need)),
        ("cache of a token", f"{size(need.kv_token)}{each}"),
        ("cache wanted", f"{size(found.wanted_kv)}: {found.sequences} x {found.max_model_len} tokens"),
        ("work space", f"about {size(need.work_space + need.libraries)}"),
    ]
    if found.cache is not None:
        held = f"{found.held_tokens} tokens, {found.held_sequences} x {found.max_model_len}"
        rows.append(("cache there is room for", f"{size(max(0, found.cache))}: {held}"))
    return rows


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def _as_json(deployment: LLMDeployment, found: Fit, others: tuple[Remedy, ...], where: str) -> dict[str, Any]:
    """Bytes are one rank's."""
    shape, need = found.shape, found.need
    return {
        "name": deployment.metadata.name,
        "source": deployment.spec.model.source,
        "config": where,
        "fits": None if found.verdict is Verdict.MEMORY_UNKNOWN else found.verdict is Verdict.FITS,
        "verdict": str(found.verdict),
        "certain": found.is_certain_no,
        "message": found.message,
        "architecture": shape.architecture,
        "parameters": shape.num_parameters,
        "downloadBytes": shape.stored_bytes,
        "device": str(found.memory.device),
        "memoryBytes": found.memory.per_rank,
        "tensorParallelSize": found.choice.ranks,
        "weightsBytes": need.weights,
        "draftBytes": need.draft,
        "adaptersBytes": need.adapters,
        "kvBytesPerToken": need.kv_token,
        "kvWantedBytes": found.wanted_kv,
        "workSpaceBytes": need.work_space + need.libraries,
        "kvRoomBytes": found.cache,
        "maxModelLen": found.max_model_len,
        "sequences": found.sequences,
        "heldSequences": found.held_sequences,
        "wouldFit": [
            {each.field: each.value for each in remedy.changes} for remedy in others
        ],
        "assumed": list(assumed(found)),
    }  # fmt: skip
