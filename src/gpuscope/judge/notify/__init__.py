"""Notifications as Alertmanager 0.34 sends them: routing, grouping, inhibition, silences and channels.

    load_alerting(path) -> AlertingConfig        an `alertmanager.yml`, strict; refused as a whole
    Notifier(config, …).take(alerts)             the rule engine's AlertSink; returns at once
    Notifier.flush_due() -> list[Delivery]       what must be sent now, one per channel and group
    SendLoop(notifier, …).start()                sends it: a thread for the timers, and one per channel

A channel is one file of `channels/`; alerts for real Alertmanagers go through `alertmanager_sender`.
"""
