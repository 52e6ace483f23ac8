/* A GPU's flows over time: piecewise constant, so every mean and every counter is exact, and two
 * processes that read the same state file at the same moment see the same numbers. */
#include "fake.h"

static const struct phase *phase_at(const struct gpu *gpu, int64_t t)
{
    for (size_t i = gpu->phases.count; i-- > 0;)
        if (gpu->phases.items[i].at <= t)
            return &gpu->phases.items[i];
    return NULL;
}

double flow_at(const struct gpu *gpu, int flow, int64_t t)
{
    const struct phase *phase = phase_at(gpu, t);
    return (phase ? phase->value[flow] : gpu->value[flow]) + work_at(gpu, flow, t);
}

double flow_total(const struct gpu *gpu, int flow, int64_t t)
{
    const struct phase *phase = phase_at(gpu, t);
    return (phase ? phase->total[flow] + phase->value[flow] * (double)(t - phase->at) / 1e6 : 0) + work_total(gpu, flow, t);
}

double flow_mean(const struct gpu *gpu, int flow, int64_t from, int64_t to)
{
    const struct phase *phase = phase_at(gpu, to);
    if (to <= from)
        return flow_at(gpu, flow, to);
    if (phase_at(gpu, from) == phase) { /* exact, where subtracting totals is not */
        double work = work_total(gpu, flow, to) - work_total(gpu, flow, from);
        return (phase ? phase->value[flow] : gpu->value[flow]) + work * 1e6 / (double)(to - from);
    }
    return (flow_total(gpu, flow, to) - flow_total(gpu, flow, from)) * 1e6 / (double)(to - from);
}

/* The mean of the last `span_us`, cut at the last change a test asked for: what is set is what is
 * read back at once, while a burst is smoothed as the driver smooths it. */
double flow_recent(const struct gpu *gpu, int flow, int64_t span_us)
{
    int64_t from = fake_now - span_us, since = (int64_t)gpu->value[K_since_us];
    return flow_mean(gpu, flow, from < since ? since : from, fake_now);
}

/* The newest complete sample, as the driver's utilisation calls answer. */
double flow_sampled(const struct gpu *gpu, int flow)
{
    int64_t period = fake->sample_period_us, end = fake_now / period * period;
    if (end - period < (int64_t)gpu->value[K_since_us])
        return flow_at(gpu, flow, fake_now);
    return flow_mean(gpu, flow, end - period, end);
}
