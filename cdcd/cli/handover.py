"""`cdcd handover`: another server takes the place of the one that a pipeline reads."""

import os
from pathlib import Path

import click

from cdcd.cli.options import CommandGroup, config_option
from cdcd.cli.output import say
from cdcd.core.pasted import cdcd


@click.group("handover", cls=CommandGroup)
def command() -> None:
    """Move a pipeline to another PostgreSQL server.

    For a major upgrade or a blue/green switch, where the new server follows the former server by a subscription
    (native logical replication). The topics stay, and consumers get every change once. See docs/handover.md.
    """


@command.command("prepare")
@config_option()
@click.option(
    "--to",
    "new_file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The pipeline's configuration for the new server. Only its `postgres` differs.",
)
@click.option(
    "--subscription", metavar="NAME", help="The subscription on the new server. [default: the only one]"
)
@click.option(
    "--timeout",
    "wait_s",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Limit for each wait, in seconds: for delivery, for the stop of all instances, for the subscription.",
)
@click.option(
    "--accept-lower-lsns",
    is_flag=True,
    help="Continue although the LSNs of the new server are lower than those of the former server. This is safe if no "
    "consumer orders records by LSN.",
)
@click.option(
    "--accept-same-oids",
    is_flag=True,
    help="Continue although a table of the new server has the oid of a former table, and its columns differ. This is "
    "safe if no mirror reads the topics.",
)
@click.option(
    "--accept-other-numbers",
    is_flag=True,
    help="Continue although columns have other attribute numbers on the new server. Protobuf uses them as field "
    "numbers. This is safe if consumers read each record by the schema that it names.",
)
def prepare(
    *,
    file: Path,
    new_file: Path,
    subscription: str | None,
    wait_s: float,
    accept_lower_lsns: bool,
    accept_same_oids: bool,
    accept_other_numbers: bool,
) -> int:
    """Drain the pipeline to a fence on the former server, and seal it.

    Stop the writes on the former server first. The command makes the slot on the new server, waits until Kafka and the
    new server have everything, and says when to stop the daemon. Then it seals the checkpoint: `cdcd run` refuses to
    start until `adopt` or `cancel`. If the command fails in the middle, run it again; nothing is sealed until its end.

    \b
    Exits with
      0   sealed
      2   the two servers, or configurations, do not fit together
      3   a server refuses or cannot be asked, or does not get there in time
      4   Kafka refuses or cannot be asked
      6   the checkpoint cannot be sealed, or LSNs of the new server are lower
      7   an instance of the pipeline was not stopped
    """  # noqa: D301  click wants the character, and not a backslash
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    former, new = load_config(file, os.environ), load_config(new_file, os.environ)

    from cdcd.core.protocol.lsn import Lsn  # noqa: PLC0415
    from cdcd.tools.handover.prepare import Preparation  # noqa: PLC0415  a wrong configuration is told first
    from cdcd.tools.handover.prepare import prepare as run  # noqa: PLC0415

    wanted = Preparation(
        former, new, subscription, wait_s, accept_lower_lsns, accept_same_oids, accept_other_numbers
    )
    seal = run(wanted, say)
    say(f"The pipeline is sealed at {Lsn(seal.fence_lsn)} of the former server (token {seal.token}).")
    say(f"Next: {cdcd('handover', 'adopt', '--config', new_file)}")
    return 0


@command.command("adopt")
@config_option()
@click.option(
    "--deliver-writes",
    is_flag=True,
    help="Continue although rows were written between the seal and the switch, if cdcd can deliver all of them from "
    "the new server.",
)
def adopt(file: Path, deliver_writes: bool) -> int:
    """Let the pipeline continue from the new server, if nothing was written in between.

    FILE is the configuration for the new server. The command reads everything that was written there since
    `prepare` created its slot, and refuses if a write came after the fence or was made on the new server itself.
    When the command has ended, allow writes, and start `cdcd run` with this configuration, in any order.

    \b
    Exits with
      0   adopted, now or before
      3   the server refuses or cannot be asked
      4   Kafka refuses or cannot be asked
      6   the pipeline is not sealed for this server, or something was written in between
      7   an instance of the pipeline runs, or another pipeline uses the transactional id
    """  # noqa: D301  click wants the character, and not a backslash
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.core.protocol.lsn import Lsn  # noqa: PLC0415
    from cdcd.tools.handover.prepare import adopt as run  # noqa: PLC0415  a wrong configuration is told first

    done = run(config, deliver_writes=deliver_writes, say=say)
    if done.verdict is None:
        say(f"The pipeline already continues from this server, at {Lsn(done.position)}.")
        return 0
    say(f"{done.verdict.held} transactions came from the former server, and Kafka holds them.")
    if done.verdict.late_count:
        say(f"{done.verdict.late_count} later transactions will be delivered from this server.")
    say(f"Adopted at {Lsn(done.position)}. Next: {cdcd('run', '--config', file)}")
    return 0


@command.command("cancel")
@config_option()
def cancel(file: Path) -> int:
    """Remove the seal, so that the pipeline continues from the former server.

    FILE is the configuration for the former server. The slot on the new server stays, and keeps WAL there. Drop it,
    unless you prepare again soon.

    \b
    Exits with
      0   the seal is gone
      6   the pipeline is not sealed, or not on this server
      7   an instance of the pipeline runs, or another pipeline uses the transactional id
    """  # noqa: D301  click wants the character, and not a backslash
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.tools.handover.prepare import cancel as run  # noqa: PLC0415  a wrong configuration is told first

    run(config, say)
    slot = config.postgres.slot
    say(f"The seal is gone. Next: {cdcd('run', '--config', file)}")
    say(f"On the new server, when it is given up: SELECT pg_drop_replication_slot('{slot}');")
    return 0
