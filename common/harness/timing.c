/* timing.c - how long what a row measures takes: the median of several runs, and how far they are apart. See timing.h.
 *
 * Launches are timed one by one, with a cold L2. The kernels of a decoding stage take microseconds and read K and V once.
 * Launched by the host one by one they would wait for it, and a flushed L2 is not what they meet in a model, where every
 * layer has keys of its own. So K and V are there many times over, more bytes than L2 holds; one launch for each copy is
 * recorded as a CUDA graph, and the graph is replayed. --warm: always the same copy. What runs on several devices is
 * recorded, too, because the host makes a hundred calls for each run.
 */
#include "timing.h"

#include "../host/errors.h"
#include "../host/memory.h"
#include "launch.h"
#include "row.h"
#include "variant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Below it lies that share of the samples, which are in order; between two of them it is interpolated. */
static double quantile(const double *times, int count, double share) {
    double place = share * (count - 1);
    int below = (int)place, above = (int)ceil(place);
    return times[below] + (place - below) * (times[above] - times[below]);
}

/* Puts the samples in order, and what follows from them into the row. */
static void summarise(Row *row, double *all, int count) {
    qsort(all, (size_t)count, sizeof *all, ascending);
    row->runs = count;
    row->latency_ms = quantile(all, count, 0.5);
    row->min_ms = all[0];
    row->iqr_ms = quantile(all, count, 0.75) - quantile(all, count, 0.25);
}

/* Warms up for 100 ms (15 where --iters says how many), or 1000 samples where these are short; then takes --iters samples; 0: for
 * about 100 ms, at least 5, or 100 of them, and as many again until the middle half lies within NOISY of the median: for about a
 * second, or 1000 samples, at most. (A chip that has rested may take more power than its limit for some 60 ms.) The CPU device needs
 * no warming up, is slow, and its times say little: half a second, and one sample may have to do. */
void take_median(Row *row, double (*sample)(void *), void *context) {
    int iters = row->run->options->iters, is_cpu = row->run->device->is_cpu;
    int least = is_cpu ? 1 : 5, some = 100, most = iters ? iters : is_cpu ? some : 1000, count = 0;
    double *all = host_alloc((size_t)most, sizeof *all);
    double warm_up = is_cpu ? 0 : iters ? 15 : 100, some_ms = is_cpu ? 500 : 100, most_ms = is_cpu ? 500 : 1000;
    for (int left = 1000; warm_up > 0 && left > 0; left--)
        warm_up -= sample(context);
    double spent = 0, pause = some_ms;
    while (count < most) {
        show_progress("%s: timing %d ...", row->name, count + 1);
        spent += all[count++] = sample(context);
        if (iters || count < least || (count % some && spent < pause))
            continue;
        summarise(row, all, count);
        if (spent >= most_ms || !(row_noise(row) > NOISY))
            break;
        pause = spent + some_ms;
    }
    summarise(row, all, count);
    free(all);
}

static double time_once(void *row) { return device_time_ms(launch_row, row, ((Row *)row)->run->options->warm); }

/* ---- decoding ---- */

enum {
    MAX_COPIES = 64, /* to make one takes milliseconds; tiny problems stay in L2 all the same */
    WARM_LAUNCHES = 20,
};

/* What all copies together move, at least: four times L2. For the 60 MiB of an H200 256 MB are that and 1.7 % more;
 * smaller chips get as much, so that figures compare. */
static double rotating_bytes(size_t l2_bytes) { return fmax(4.0 * l2_bytes, 256e6); }

/* The row's launch with a K, a V and a workspace of its own. Returns 0 if they do not fit; free_copy frees what did. */
static int make_copy(const Row *row, Row *copy) {
    const Run *run = row->run;
    size_t bytes = key_elements(run->p) * dtype_bytes(run->p->dtype);
    *copy = *row;
    void *k = device_alloc(bytes, "K"), *v = device_alloc(bytes, "V");
    copy->tensors.k = k;
    copy->tensors.v = v;
    if (!alloc_buffers(row->variant, run->p, copy->workspace, copy->workspace_count) || !k || !v)
        return 0;
    device_write(k, run->inputs.k, bytes);
    device_write(v, run->inputs.v, bytes);
    if (variant_prepares(row->variant, run->p))
        row->variant->preparation->launch(run->p, &copy->tensors, copy->workspace);
    return 1;
}

static void free_copy(Row *copy) {
    device_free((void *)copy->tensors.k);
    device_free((void *)copy->tensors.v);
    free_buffers(copy->workspace, copy->workspace_count);
}

typedef struct {
    void **rows;
    int count;
} Replay;
static double time_all(void *context) {
    const Replay *r = context;
    return device_time_replay_ms(launch_row, r->rows, r->count);
}

static void time_replay(Row *row) {
    const Run *run = row->run;
    int cold = !run->options->warm;
    double wanted = rotating_bytes(run->device->l2_bytes) / moved_bytes(row) + 1;
    int count = wanted < MAX_COPIES ? (int)wanted : MAX_COPIES, made = 0;
    Row *copies = host_alloc((size_t)count, sizeof *copies);
    void **rows = host_alloc(WARM_LAUNCHES + (size_t)count, sizeof *rows);
    for (; cold && made < count && make_copy(row, &copies[made]); made++) /* where one does not fit, fewer will have to do */
        rows[made] = &copies[made];
    Replay replay = {rows, made};
    if (made == 0) { /* warm, or no memory for a copy: the inputs themselves, over and over */
        replay.count = WARM_LAUNCHES;
        for (int i = 0; i < replay.count; i++)
            rows[i] = row;
    }
    take_median(row, time_all, &replay);
    device_replay_end();
    for (int i = 0; i < count; i++)
        free_copy(&copies[i]); /* nothing, of one that was not made */
    free(copies);
    free(rows);
}

/* ---- several devices ---- */

/* One launch of each kernel per device, recorded as well. What happens in a recording has no times, so one more run, without
 * it, tells how long each device computes. */
static void time_devices(Row *row) {
    void *rows[] = {row};
    Replay replay = {rows, 1};
    if (row->run->device->is_cpu) {
        take_median(row, time_once, row);
    } else {
        take_median(row, time_all, &replay);
        device_replay_end();
        time_once(row);
    }
    for (int r = 0; r < row->variant->devices(row->run->p); r++) {
        row->busy_ms[r] = device_busy_ms(r);
        for (int from = 0; from < MAX_DEVICES; from++)
            row->pulled[r] += from == r ? 0 : device_link_bytes(from, r);
    }
}

void time_row(Row *row) {
    Run *run = row->run;
    if (row->variant->devices)
        time_devices(row);
    else if (run->stage->kind == DECODING && row->role != ROW_PART && !run->device->is_cpu)
        time_replay(row);
    else
        take_median(row, time_once, row);
    if (row->role == ROW_REFERENCE)
        run->reference_ms = row->latency_ms;
    if (row->role != ROW_PART)
        row->speed_ratio = run->reference_ms / row->latency_ms;
    Traffic traffic[MAX_TRAFFIC];
    int kernels = row_traffic(row, traffic);
    row->gpu_bytes = kernels < 0 ? NAN : 0;
    for (int i = 0; i < kernels; i++)
        row->gpu_bytes += traffic[i].read + traffic[i].written;
}

/* ---- rows for parts of what a variant does ---- */

/* Times some passes of a variant that has run, as a row of their own, "<stage>/<name>"; the variant's says whether it is
 * right. */
static void run_part(const Row *whole, Passes passes, const char *name) {
    Run *run = whole->run;
    Row *row = &run->rows[run->row_count++];
    *row = *whole;
    row->role = ROW_PART;
    row->passes = passes;
    row->comparison_count = row->spread_runs = 0;
    row->speed_ratio = 0;
    if (passes == BOTH)
        row->workspace_bytes += run->rows[0].workspace_bytes;
    snprintf(row->name, sizeof row->name, "%s/%s", run->stage->name, name);
    time_row(row);
    finish_row(row);
}

void time_parts(const Row *row) {
    const Run *run = row->run;
    if (run->stage->kind == BACKWARD && !row->variant->devices) /* the forward pass runs on one device */
        run_part(row, BOTH, row->variant->name);
    if (!variant_prepares(row->variant, run->p))
        return;
    const Preparation *preparation = row->variant->preparation;
    int is_timed = 0; /* whether another variant has prepared its inputs in the same way */
    for (const Row *other = run->rows; other < row; other++)
        is_timed |= other->passes == PREPARE && other->variant->preparation->launch == preparation->launch;
    if (!is_timed)
        run_part(row, PREPARE, preparation->name);
    char both[sizeof row->name];
    snprintf(both, sizeof both, "%s+%s", preparation->name, row->variant->name);
    run_part(row, WITH_PREPARE, both);
}
