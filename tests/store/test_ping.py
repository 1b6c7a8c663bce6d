# SPDX-License-Identifier: Apache-2.0
"""A store that takes no changes says so: its disk is full, or it is read-only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from andon.errors import StoreError
from tests.store.making import opened
from tests.support import play

ON_A_SMALL_DISK = """
import asyncio, sys
from pathlib import Path
from andon.errors import StoreError
from andon.store.sql import SQLStore

folder = Path(sys.argv[1])

async def told(store):
    try:
        await store.ping()
    except StoreError as error:
        return str(error)
    return "it takes changes"

async def main():
    store = SQLStore(f"sqlite:///{folder}/andon.db")
    print(await told(store))
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    print(await told(store))
    (folder / "ballast").unlink()
    print(await told(store))
    await store.close()

asyncio.run(main())
"""


def test_a_file_on_a_full_disk(tmp_path: Path) -> None:
    inside = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*alone, 'mount -t tmpfs none "$1"', "sh", str(tmp_path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk of one's own can be made here")
    program = [*alone, inside, "sh", str(tmp_path), sys.executable, ON_A_SMALL_DISK]
    output = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    fine, full, again = output.splitlines()
    assert fine == again == "it takes changes"
    assert "disk is full. Make room on the disk" in full


def test_a_server_that_takes_no_changes(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await store.ping()
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                for setting in ("on", "off"):
                    name = admin.info.dbname
                    admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {setting}".encode())
                    admin.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                        "AND pid <> pg_backend_pid()"
                    )
                    if setting == "on":
                        with pytest.raises(StoreError, match=r"is read-only.*default_transaction_read_only is on"):
                            await store.ping()
                    else:
                        await store.ping()

    play(main)
