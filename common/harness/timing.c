/* timing.c - how long a launch takes: the median of several runs, with a cold L2, and how far they are apart. See run.h. */
#include "../host/memory.h"
#include "../host/errors.h"
#include "run.h"

#include <stdlib.h>

void launch_once(void *context) {
    const Launch *l = context;
    const Problem *p = l->run->p;
    const DirectionKind *d = &directions[l->direction];
    if (d->runs_forward)
        l->run->forward->launch(p, l->tensors, l->run->rows[0].workspace);
    if (d->prepares)
        l->variant->preparation->launch(p, l->tensors, l->workspace);
    if (d->launches)
        l->variant->launch(p, l->tensors, l->workspace);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Below it lies that share of the samples, which are in order; between two of them it is interpolated. */
static double quantile(const double *times, int count, double share) {
    double place = share * (count - 1);
    int below = (int)place, above = below + (below + 1 < count);
    return times[below] + (place - below) * (times[above] - times[below]);
}

/* Warms up for 15 ms, then takes --iters samples; 0: for about 100 ms, at least 5 and at most 100. The CPU
 * device needs no warming up and is slow: half a second, and one sample may have to do. */
void take_median(const Run *run, double (*sample)(void *), void *context, Row *row) {
    int iters = run->options.iters, is_cpu = run->report.device->is_cpu;
    double times[100], *all = iters > 100 ? host_alloc((size_t)iters, sizeof *all) : times;
    double warm_up = is_cpu ? 0 : 15, budget = is_cpu ? 500 : 100;
    int least = is_cpu ? 1 : 5, count = 0;
    for (double spent = 0; spent < warm_up;)
        spent += sample(context) + 1e-3; /* a clock that stands still must not keep us here */
    for (double spent = 0; iters ? count < iters : count < 100 && (count < least || spent < budget); count++) {
        if (iters)
            show_progress("%s: timing %d of %d ...", row->name, count + 1, iters);
        else
            show_progress("%s: timing %d ...", row->name, count + 1);
        spent += all[count] = sample(context);
    }
    qsort(all, (size_t)count, sizeof *all, ascending);
    row->runs = count;
    row->latency_ms = quantile(all, count, 0.5);
    row->min_ms = all[0];
    row->iqr_ms = quantile(all, count, 0.75) - quantile(all, count, 0.25);
    if (all != times)
        free(all);
}

static double time_once(void *context) {
    const Launch *l = context;
    return device_time_ms(launch_once, context, l->run->options.warm);
}

void time_launch(Launch *launch, Row *row) { take_median(launch->run, time_once, launch, row); }
