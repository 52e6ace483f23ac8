#!/bin/sh
# EpilogSlurmctld: the receipt of a job that held GPUs, mailed to its user or kept in a folder, and as
# jobstats' JS1: text in the job's AdminComment, where reportseff finds it.
#
# In slurm.conf:   EpilogSlurmctld=/etc/slurm/receipt-epilog.sh
# Settings, in /etc/default/gpuscope-receipt or the environment of slurmctld:
#   GPUSCOPE_SERVER     address of gpuscope or Prometheus (http://127.0.0.1:9470)
#   RECEIPT_MAIL_DOMAIN mail it to USER@DOMAIN; empty: no mail
#   RECEIPT_DIR         keep it as DIR/JOB.txt; empty: print it (slurmctld discards what an epilog prints)
#   RECEIPT_COMMENT     1: write the JS1: text to AdminComment; needs slurmdbd, and a sacctmgr that keeps capital
#                       letters (that of 22.05 does not: nothing is kept then)
#
# It must never hold up slurmctld or fail a job's end: everything has a time limit, and it always exits with 0.

set -u
[ -r /etc/default/gpuscope-receipt ] && . /etc/default/gpuscope-receipt
server=${GPUSCOPE_SERVER:-http://127.0.0.1:9470}
job=${SLURM_JOB_ID:-}
user=${SLURM_JOB_USER:-}

case $job in
    '' | *[!0-9]*) exit 0 ;;
esac

receipt() {
    timeout "${RECEIPT_TIMEOUT:-20}" gpuscope job "$job" --server "$server" --since "${RECEIPT_SINCE:-30d}" "$@" 2>/dev/null
}

deliver() {
    # The last sample of the job is scraped up to a scrape interval after its end.
    sleep "${RECEIPT_DELAY:-30}"
    text=$(receipt) || exit 0 # it held no GPU, or the server does not answer
    if [ -n "${RECEIPT_DIR:-}" ]; then
        umask 077
        printf '%s\n' "$text" >"$RECEIPT_DIR/$job.txt"
    elif [ -n "${RECEIPT_MAIL_DOMAIN:-}" ]; then
        case $user in
            '' | *[!A-Za-z0-9._-]* | -*) ;;
            *) printf '%s\n' "$text" | mail -s "GPU receipt of job $job" "$user@$RECEIPT_MAIL_DOMAIN" ;;
        esac
    else
        printf '%s\n' "$text"
    fi
    if [ "${RECEIPT_COMMENT:-0}" = 1 ]; then
        comment
    fi
}

# slurmctld changes nothing about a job that has ended; slurmdbd does. The number of an array's last task is that of
# the whole array: without the task's index all of them would get this comment.
comment() {
    where=$job
    [ "${SLURM_ARRAY_JOB_ID:-}" = "$job" ] && where=${job}_${SLURM_ARRAY_TASK_ID:-}
    comment=$(receipt --jobstats) || return
    set_comment "$comment"
    stored=$(timeout 20 sacct -n -X -P -j "$where" -o AdminComment)
    if [ "$stored" != "$comment" ]; then
        set_comment ''
        complain "job $where: AdminComment is not as written: sacctmgr writes it in lower case, or slurmdbd is down"
    fi
}

set_comment() {
    timeout 20 sacctmgr -i -Q update job where jobid="$where" set AdminComment="$1" >/dev/null 2>&1
}

complain() {
    echo "gpuscope-receipt: $1" >&2
    command -v logger >/dev/null && logger -t gpuscope-receipt "$1"
}

if [ "${RECEIPT_FOREGROUND:-0}" = 1 ]; then
    deliver
else
    deliver </dev/null >/dev/null 2>&1 &
fi
exit 0
