"""The command `sayso migrate`: bring stored data to the layout of this version."""

from __future__ import annotations

import click

from sayso.ops.cli.command import Options, SaysoCommand, clear_errors, fail, pass_options


@click.command(cls=SaysoCommand, examples=["sayso migrate", "sayso migrate --apply"])
@click.option(
    "--apply", "is_real", is_flag=True, help="Do it. Without this option nothing is changed."
)
@pass_options
def migrate(options: Options, *, is_real: bool) -> None:
    """Show what an upgrade still has to change in stored data.

    Also shows which versions of processes and records there are.

    Upgrade all processes first. After --apply older versions cannot be started on this Redis. It is
    refused while processes of another version run, and may be killed and run again.
    """
    from sayso.config.wiring.redis_parts import RedisParts
    from sayso.ops.server import migration

    settings = options.load()
    run = migration.migrate if is_real else migration.inspect
    with clear_errors():
        client = RedisParts.find(settings, options.data).client
        try:
            state = run(client, settings.name, prefix=settings.key_prefix)
        except migration.OtherProcesses as exc:
            fail(str(exc))

    tense = "done" if is_real else "would"
    step_lines = [f"{tense}: {step}" for step in state.steps] or ["nothing to do"]
    if state.steps and not is_real:
        advice = "add --apply"
        if state.layout == 1:
            advice = f"stop web processes of layout 1, which are not seen here, then {advice}"
        step_lines.append(f"nothing was changed: {advice}")

    records = [
        {"kind": kind, "version": number, "count": count}
        for (kind, number), count in sorted(state.records.items())
    ]
    value = {
        "layout": state.layout,
        "steps": state.steps,
        "applied": is_real,
        "records": records,
        "workers": dict(state.workers),
        "ingress": dict(state.ingress),
    }
    options.print(value, [*migration.describe(state), *step_lines])
