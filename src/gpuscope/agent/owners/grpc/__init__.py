"""One gRPC call at a time over a unix socket: enough for the kubelet, without a full client's 12 MiB.

Every answer is treated as hostile: lengths are checked, totals are bounded, time is limited.
"""
