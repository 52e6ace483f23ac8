"""slurmdbd and its MariaDB for one cluster, as ordinary processes beside slurmctld.

Both keep their data in the cluster's folder. Without their programs the test is skipped by name.
"""

from __future__ import annotations

import pytest

from tests.slurm_lab.cluster import SlurmCluster

DBD_PORT = 6819
DATABASE_PORT = 3306
PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct", "sacctmgr")
USERS = {"games": "ml", "news": "physics"}
"""Accounts by user; both are users that every Debian has."""

SLURM_CONF = f"""AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={DBD_PORT}
AccountingStoragePass={{folder}}/munge.socket
AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:h100
PriorityType=priority/multifactor
PriorityWeightFairshare=1000
"""
SLURMDBD_CONF = f"""AuthType=auth/munge
AuthInfo=socket={{folder}}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={DBD_PORT}
SlurmUser=root
PidFile={{folder}}/slurmdbd.pid
LogFile={{folder}}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={DATABASE_PORT}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_accounts
"""
SQL = """CREATE DATABASE IF NOT EXISTS slurm_accounts;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm_accounts.* TO 'slurm'@'127.0.0.1';
"""


class Accounting:
    """Started between munged and slurmctld: slurmctld reads the accounts from slurmdbd when it starts."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster

    def start(self) -> None:
        cluster = self._cluster
        missing = [name for name in PROGRAMS if not cluster.has(name)]
        if missing:
            pytest.skip(f"accounting: not installed: {', '.join(missing)}")
        conf = cluster.outside / "slurmdbd.conf"
        conf.write_text(SLURMDBD_CONF.format(folder=cluster.inside))
        conf.chmod(0o600)  # slurmdbd refuses anything else
        (cluster.outside / "database.sql").write_text(SQL)
        data = f"--datadir={cluster.inside}/database"
        cluster.run("mariadb-install-db", "--no-defaults", "--user=root", data, "--skip-test-db")
        cluster.spawn(
            "mariadbd", "mariadbd", "--no-defaults", "--user=root", data, "--bind-address=127.0.0.1",
            f"--port={DATABASE_PORT}", f"--socket={cluster.inside}/database.socket", "--skip-name-resolve",
            f"--init-file={cluster.inside}/database.sql", "--innodb-buffer-pool-size=64M",
            f"--pid-file={cluster.inside}/mariadbd.pid", "--innodb-flush-log-at-trx-commit=0",
        )  # fmt: skip
        cluster.wait("mariadbd", lambda: (cluster.outside / "database.socket").exists())
        self.start_daemon()
        self._add("cluster", "test")
        self._add("account", ",".join(USERS.values()), "Cluster=test")
        for user, account in USERS.items():
            self._add("user", user, f"Account={account}", "Cluster=test")

    def start_daemon(self) -> None:
        cluster = self._cluster
        cluster.spawn("slurmdbd", "slurmdbd", "-D")
        listed = ("sacctmgr", "-n", "-P", "list", "tres", "format=type")
        cluster.wait("slurmdbd", lambda: "cpu" in cluster.run(*listed, check=False))

    def stop_daemon(self) -> None:
        self._cluster.end("slurmdbd")

    def _add(self, *words: str) -> None:
        self._cluster.run("sacctmgr", "-i", "-Q", "add", *words)

    def jobs(self, *fields: str) -> dict[str, tuple[str, ...]]:
        """What sacct has about every job, by its number."""
        text = self._cluster.run(
            "sacct", "-a", "-X", "-n", "-P", "-S", "now-1hour", "-o", ",".join(("JobIDRaw", *fields))
        )
        rows = [line.split("|") for line in text.splitlines()]
        return {row[0]: tuple(row[1:]) for row in rows}
