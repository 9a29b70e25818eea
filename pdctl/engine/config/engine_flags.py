"""The engine's command line, in SGLang's flag names: one command serves both (sglang 0.5.23 srt/server_args.py)."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from pdctl import deployment_secret, http_auth
from pdctl.engine.config import start_checks
from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.drill import rehearsed_mistakes
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from pdctl.http_auth import Keys

# Not argparse's own, which is forty lines: what is wrong stands below it, and must be seen.
USAGE = "python -m pdctl.engine --model-path DIRECTORY [FLAG ...]; --help lists every flag"
# Flags whose name differs from the field's, or that have a second spelling in SGLang.
SPELLINGS = {
    "model_path": ("--model-path", "--model"),
    "tp_size": ("--tp-size", "--tensor-parallel-size", "--tp"),
    "dp_size": ("--dp-size", "--data-parallel-size", "--dp"),
    "attn_dp_size": ("--attn-dp-size", "--attention-data-parallel-size"),
    "pp_size": ("--pp-size", "--pipeline-parallel-size", "--pp"),
    "ep_size": ("--ep-size", "--expert-parallel-size", "--ep"),
    "dist_init_addr": ("--dist-init-addr", "--nccl-init-addr"),
}
CHOICES = {
    "disaggregation_mode": ("null", "prefill", "decode"),
    "disaggregation_transfer_backend": ("auto", "nixl", "shm", "mooncake", "mooncake_tcp", "fake"),
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16"),
    "kv_layout": ("layer-major", "page-major", "head-major"),
    "load_balance_method": ("auto", "round_robin", "follow_bootstrap_room", "total_requests", "total_tokens"),
    "disaggregation_decode_retraction_backup": ("cpu_tensor",),
    "log_level": ("debug", "info", "warning", "error"),
}
# What SGLang takes from the environment: the same variables set the defaults here.
ENVIRONMENT = {
    "bootstrap_timeout": "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
    "waiting_timeout": "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
    "disaggregation_transfer_threads": "SGLANG_DISAGGREGATION_QUEUE_SIZE",
    "heartbeat_interval": "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL",
    "heartbeat_max_failure": "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE",
}


def parse(argv: Sequence[str], environ: MutableMapping[str, str]) -> ServerArgs:
    """ServerArgs from a command line; exits 2 with argparse's message when a flag is unknown or contradicts itself."""
    return parse_with_keys(argv, environ)[0]


def parse_with_keys(argv: Sequence[str], environ: MutableMapping[str, str]) -> tuple[ServerArgs, Keys]:
    """The same with the keys, which only the HTTP process may know: ServerArgs travel in command lines.

    `--deployment-secret-file` is left in `environ`, where the processes this one starts find it; API keys are not.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m pdctl.engine", usage=USAGE, allow_abbrev=False, formatter_class=raw
    )
    for field in dataclasses.fields(ServerArgs):
        if field.name == "rehearse":
            continue
        spellings = SPELLINGS.get(field.name, ("--" + field.name.replace("_", "-"),))
        default = None if field.name == "model_path" else field.default
        variable = ENVIRONMENT.get(field.name, "")
        if field.type == "bool":  # a bare flag
            parser.add_argument(*spellings, dest=field.name, action="store_true")
            continue
        kind = {"int": int, "float": float}.get(str(field.type), str)
        if variable in environ:
            try:
                default = kind(float(environ[variable]))
            except (ValueError, OverflowError):
                parser.error(f"environment variable {variable}={environ[variable]!r} is not a number")
        parser.add_argument(
            *spellings,
            dest=field.name,
            type=kind,
            default=default,
            required=field.name == "model_path",
            choices=CHOICES.get(field.name),
        )
    http_auth.add_flags(parser)
    parser.add_argument("--deployment-secret-file", default="", metavar="FILE", help=deployment_secret.HELP)
    parser.add_argument("--enable-dp-attention", action="store_true", help=start_checks.DEPRECATED)
    group = parser.add_argument_group("rehearsal", rehearsed_mistakes.HELP)
    group.add_argument("--rehearse", nargs="+", action="extend", default=[], metavar="INCIDENT")
    values = vars(parser.parse_args(argv))
    try:
        deployment_secret.choose(values.pop("deployment_secret_file"), environ)
        keys = http_auth.chosen(values, environ)
    except UsageError as error:
        parser.error(f"{error.message}{f'; {error.fix}' if error.fix else ''}")
    if values.pop("enable_dp_attention"):
        values["attn_dp_size"], values["dp_size"] = max(values["dp_size"], values["attn_dp_size"]), 1
    args = ServerArgs(**{**values, "rehearse": tuple(values["rehearse"])})
    problem = start_checks.first_problem(args)
    if problem:
        parser.error(problem)
    args = start_checks.divided(args)
    port = args.rehearsal.fallback_port
    for variable in (http_auth.KEY_VARIABLE, http_auth.ADMIN_VARIABLE):
        environ.pop(variable, None)
    return (dataclasses.replace(args, disaggregation_bootstrap_port=port) if port else args), keys
