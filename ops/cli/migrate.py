"""The command `sayso migrate`."""

from __future__ import annotations

import click

from sayso.ops.cli.command import Options, SaysoCommand, clear_errors, fail, pass_options


@click.command(cls=SaysoCommand, examples=["sayso migrate", "sayso migrate --apply"])
@click.option(
    "--apply", "is_real", is_flag=True, help="Do it. Without this option nothing is changed."
)
@pass_options
def migrate(options: Options, *, is_real: bool) -> None:
    """Show what an upgrade still has to change in stored data,
    and which versions of processes and records there are.

    Upgrade all processes first. After --apply older versions cannot be started on this Redis. It is
    refused while processes of another version run, and may be killed and run again.
    """
    from sayso.config.wiring.redis_parts import RedisParts
    from sayso.ops.server import migration

    settings = options.load()
    with clear_errors():
        client = RedisParts.find(settings, options.data).client
        try:
            state = (migration.migrate if is_real else migration.inspect)(
                client, settings.name, prefix=settings.key_prefix
            )
        except migration.OtherProcesses as exc:
            fail(str(exc))
    done = "done" if is_real else "would"
    steps = [f"{done}: {step}" for step in state.steps] or ["nothing to do"]
    if state.steps and not is_real:
        if state.layout == 1:
            unseen = "stop web processes of layout 1, which are not seen here, then "
        else:
            unseen = ""
        steps.append(f"nothing was changed: {unseen}add --apply")
    records = [
        {"kind": kind, "version": number, "count": n}
        for (kind, number), n in sorted(state.records.items())
    ]
    value = {"layout": state.layout, "steps": state.steps, "applied": is_real, "records": records}
    value |= {"workers": dict(state.workers), "ingress": dict(state.ingress)}
    options.print(value, [*migration.describe(state), *steps])
