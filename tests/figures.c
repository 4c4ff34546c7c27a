/* figures.c - a second opinion on every figure that a stage's program prints: each value is worked out here in another way, or its
 * cause is in the test's hands.
 *
 * Linked once a stage, as the grid is; the program runs inside this process. The clock is the test's own: the linker puts
 * __wrap_device_time_ms in the place of device_time_ms (--wrap, see common/build.mk), and each launcher of the stage takes a time
 * that is written down here. What the launchers leave in O, dQ, dK and dV is kept, and the errors are computed of that.
 */
#define _POSIX_C_SOURCE 200809L /* fileno */
#include "../common/numeric.h"
#include "../common/harness/variant.h"
#include "../common/judge/oracle.h"
#include "../common/host/memory.h"
#include "../common/harness/run.h"
#include "../common/harness/tensors.h"
#include "capture.h"
#include "figures.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

extern const Stage stage;

/* What is wrong since it was last set to 0. */
static int failures;
static void wrong(const char *row, const char *key, const char *got, const char *want) {
    diag("%s: %s is \"%s\", expected \"%s\"", row, key, got, want);
    failures++;
}

/* ---- launchers that take a known time ---- */

enum { REFERENCE = MAX_VARIANTS, FIRST_PASS, PRE_PASS, LAUNCHER_COUNT };

/* In ms. No sum of two is a third, so that a latency tells what it is the latency of. */
static const double COST[LAUNCHER_COUNT] = {
    0.040,  0.052,  0.021,  0.0331, 0.045, 0.057,  0.0613, 0.0654, 0.0695,
    0.0736, 0.0777, 0.0818, 0.0859, 0.09,  0.0941, 0.0982, [REFERENCE] = 0.640, [FIRST_PASS] = 0.0263, [PRE_PASS] = 0.036};

/* The run-th of a row takes its cost so many times. Neither first, last nor mean is the median, and one is far off. */
static const double FACTORS[] = {3, 1, 1.5, 40, 2}, WARM_UP_FACTOR = 1000;
typedef struct {
    int runs;
    double median, iqr; /* quartiles are interpolated: of 1 1.5 3 40 they are 1.375 and 12.25 */
} Sample;
static const Sample FOUR = {4, 2.25, 12.25 - 1.375}, FIVE = {5, 2, 3 - 1.5};

static Stage timed; /* the stage with these launchers */
static Variant timed_forward, timed_reference;
static Preparation preparations[MAX_VARIANTS];
static const Variant *original[LAUNCHER_COUNT];
static double now;
static int is_timing; /* a launcher then takes its time and does nothing else */
static int launches[LAUNCHER_COUNT];
static int other_launch; /* of a backward variant: this launch leaves another dK than the first; 0: none */
static double other_by;

static void *kept[LAUNCHER_COUNT][3]; /* O, or dQ, dK and dV, on the host */
static void *inputs[4];               /* Q, K, V, dO */

static void *read_back(const void *device, size_t bytes) {
    void *host = host_alloc(bytes, 1);
    device_read(host, device, bytes);
    return host;
}

static size_t bytes_of(const Problem *p, int is_query) {
    return (is_query ? query_elements(p) : key_elements(p)) * dtype_bytes(p->dtype);
}

/* Keeps what the first launch left. Of a backward variant that is what the later ones leave, too: atomics would add in another
 * order. */
static void keep(int who, int is_backward, const Problem *p, const Tensors *t) {
    void *outputs[3] = {is_backward ? t->dq : t->o, t->dk, t->dv};
    for (int i = 0; i < (is_backward ? 3 : 1); i++)
        if (!kept[who][i])
            kept[who][i] = read_back(outputs[i], bytes_of(p, i == 0));
        else if (is_backward)
            device_write(outputs[i], kept[who][i], bytes_of(p, i == 0));
    if (is_backward && launches[who] == other_launch) {
        double first = dtype_to_double(p->dtype, kept[who][1], 5);
        uint16_t other = double_to_fp16(first + 0.25);
        device_write((uint16_t *)t->dk + 5, &other, sizeof other);
        other_by = fabs(fp16_to_float(other) - first);
    }
}

static long printed; /* bytes, when a row was launched last */
static int late;     /* a row was launched before the one above it was printed */

static void launched(int who, const Problem *p, const Tensors *t, const Buffer *workspace) {
    now += COST[who];
    if (is_timing)
        return;
    launches[who]++;
    if (who == PRE_PASS) {
        original[who]->preparation->launch(p, t, workspace);
        return;
    }
    if (launches[who] == 1) {
        struct stat file;
        fstat(STDOUT_FILENO, &file);
        late += file.st_size <= printed;
        printed = file.st_size;
    }
    int is_backward = stage.forward && who != FIRST_PASS;
    if (!is_backward || !kept[who][0]) {
        original[who]->launch(p, t, workspace);
        if (original[who]->collect)
            original[who]->collect(p, t, workspace);
    }
    keep(who, is_backward, p, t);
    const void *device[4] = {t->q, t->k, t->v, t->d_o};
    for (int i = 0; i < 4 && device[i]; i++)
        if (!inputs[i])
            inputs[i] = read_back(device[i], bytes_of(p, i == 0 || i == 3));
}

#define EACH_VARIANT(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#define LAUNCHER(who)                                                                                                       \
    static void launch_##who(const Problem *p, const Tensors *t, const Buffer *w) { launched(who, p, t, w); }
#define NAME(who) launch_##who,
EACH_VARIANT(LAUNCHER)
LAUNCHER(REFERENCE)
LAUNCHER(FIRST_PASS)
LAUNCHER(PRE_PASS)
static Launcher *const LAUNCHERS[MAX_VARIANTS] = {EACH_VARIANT(NAME)};

static void make_timed_stage(void) {
    timed = stage;
    timed.default_mask = NULL; /* a mask only where the options below have one */
    for (int i = 0; i < MAX_VARIANTS && stage.variants[i].name; i++) {
        original[i] = &stage.variants[i];
        timed.variants[i].launch = LAUNCHERS[i];
        timed.variants[i].collect = NULL; /* its launcher above does that */
        if (stage.variants[i].preparation) {
            original[PRE_PASS] = &stage.variants[i];
            preparations[i] = *stage.variants[i].preparation;
            preparations[i].launch = launch_PRE_PASS;
            timed.variants[i].preparation = &preparations[i];
        }
    }
    original[REFERENCE] = stage.reference ? stage.reference : &naive_variant;
    timed_reference = *original[REFERENCE];
    timed_reference.launch = launch_REFERENCE;
    timed.reference = &timed_reference;
    if (!stage.forward)
        return;
    original[FIRST_PASS] = stage.forward;
    timed_forward = *stage.forward;
    timed_forward.launch = launch_FIRST_PASS;
    timed.forward = &timed_forward;
}

/* ---- the clock ---- */

/* What was asked of the clock: one entry for each row that was timed. */
typedef struct {
    const Variant *variant;
    Passes passes;
    int runs, warm;
    int contexts, copies; /* of a replay: launches recorded, and how many of them have memory of their own */
} Session;
static Session sessions[MAX_ROWS];
static int session_count, replays_ended;

/* Whether a launch of a replay has a K, a V and a workspace that the one before has not, and in them what the inputs are. */
static int is_copy(const Row *l, const Row *before) {
    Buffer plan[MAX_WORKSPACE_BUFFERS];
    const Problem *p = l->run->p;
    size_t bytes = bytes_of(p, 0);
    void *k = read_back(l->tensors.k, bytes), *v = read_back(l->tensors.v, bytes);
    int fresh = l->tensors.k != before->tensors.k && l->tensors.v != before->tensors.v,
        same = !memcmp(k, l->run->inputs.k, bytes) && !memcmp(v, l->run->inputs.v, bytes);
    for (int i = l->variant->plan ? l->variant->plan(p, plan) : 0; i-- > 0;)
        fresh = fresh && l->workspace[i].pointer && l->workspace[i].pointer != before->workspace[i].pointer;
    free(k), free(v);
    return fresh && same && l->variant == before->variant && l->tensors.q == before->tensors.q &&
           l->tensors.o == before->tensors.o;
}

static double time_of(void (*work)(void *), void *const *contexts, int count, int warm) {
    const Row *l = contexts[0];
    Session *s = session_count ? &sessions[session_count - 1] : NULL;
    if (!s || s->variant != l->variant || s->passes != l->passes) {
        s = &sessions[session_count++];
        *s = (Session){l->variant, l->passes, 0, warm, count, 1};
        for (int i = 1; i < count; i++)
            s->copies += is_copy(contexts[i], contexts[i - 1]);
    }
    now = 0;
    is_timing = 1;
    for (int i = 0; i < count; i++)
        work(contexts[i]);
    is_timing = 0;
    int run = s->runs++ - !device_properties()->is_cpu; /* a GPU warms up: the first run is so slow that one will do */
    return now / count * (run < 0 ? WARM_UP_FACTOR : FACTORS[run % 5]);
}
double __wrap_device_time_ms(void (*work)(void *), void *context, int warm) { return time_of(work, &context, 1, warm); }
double __wrap_device_time_replay_ms(void (*work)(void *), void *const *contexts, int count) {
    return time_of(work, contexts, count, 0);
}
void __wrap_device_replay_end(void) { replays_ended++; }
static const Bandwidth BANDWIDTH = {.copy_gbps = 4, .read_gbps = 5};
Bandwidth __wrap_device_bandwidth(void) { return BANDWIDTH; }

/* ---- memory that is not there ---- */

static const double UNAVAILABLE = 3 * 0x1p30;
static const char *unavailable; /* allocations for this purpose fail, */
static int available;           /* after so many */

static int too_large(const Problem *p, Buffer *workspace) {
    (void)p;
    workspace[0] = (Buffer){.purpose = "too much", .bytes = (size_t)UNAVAILABLE};
    return 1;
}

void *__real_device_alloc(size_t bytes, const char *purpose);
void *__wrap_device_alloc(size_t bytes, const char *purpose) {
    if (strcmp(purpose, "too much") == 0 || (unavailable && strcmp(purpose, unavailable) == 0 && available-- <= 0))
        return NULL;
    return __real_device_alloc(bytes, purpose);
}

/* ---- the oracle, which takes long ---- */

static int questions; /* that a run asked of it */

Samples __real_samples_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, size_t limit);
Samples __wrap_samples_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, size_t limit) {
    questions++;
    return __real_samples_compute(p, key_lengths, inputs, limit);
}
Gradients __real_gradients_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, const void *o,
                                   const float *lse, size_t limit);
Gradients __wrap_gradients_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, const void *o,
                                   const float *lse, size_t limit) {
    questions++;
    return __real_gradients_compute(p, key_lengths, inputs, o, lse, limit);
}

/* ---- running the program ---- */

/* One run: what it was asked for, as this file understands it, and what it printed. */
typedef struct {
    const char *options;
    Problem p;
    const int *lengths;
    int seed, code;
    char *text;
    char *lines[64];
    int line_count;
} Printed;

/* Its options in words. */
typedef struct {
    char *words[40];
    int count, code;
} Arguments;
static void call_program(void *context) {
    Arguments *a = context;
    a->code = harness_main(&timed, a->count, a->words);
}

/* That a result cannot be checked is expected of some problems here: on stderr it would look like an alarm. */
static void call_quietly(void *context) {
    char *text = captured(STDERR_FILENO, call_program, context);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        if (!strstr(line, ": not checked: "))
            fprintf(stderr, "%s\n", line);
    }
    free(text);
}

static void run_program(Printed *out, const char *format) {
    char options[256];
    Arguments a;
    snprintf(options, sizeof options, "%s%s", out->options, format);
    a.count = words_of(options, a.words, 40);
    session_count = replays_ended = questions = 0;
    memset(launches, 0, sizeof launches);
    printed = *format ? -1 : 0, late = 0; /* before a table stands what is in it */
    free(out->text);
    out->text = captured(STDOUT_FILENO, unavailable ? call_program : call_quietly, &a);
    out->code = a.code;
    ok(device_allocated() == 0, "'%s%s' gives its memory back", out->options, format);
    int most = strstr(out->options, "--no-validate") ? 0 : stage.forward ? 2 : 1;
    ok(!late, "prints a row before the next is launched");
    ok(questions <= most || unavailable, "and asks the oracle at most %d times", most);
    out->line_count = 0;
    for (char *more; (more = strstr(out->text, "\n           "));) /* a long line went on below */
        memmove(more + 1, more + 12, strlen(more + 12) + 1), *more = ' ';
    for (char *line = strtok(out->text, "\n"); line && out->line_count < 64; line = strtok(NULL, "\n"))
        out->lines[out->line_count++] = line;
}

static void forget(void) {
    for (int who = 0; who < LAUNCHER_COUNT; who++)
        for (int i = 0; i < 3; i++)
            free(kept[who][i]), kept[who][i] = NULL;
    for (int i = 0; i < 4; i++)
        free(inputs[i]), inputs[i] = NULL;
}

/* ---- the rows that must be there ---- */

enum { ROWS = MAX_ROWS };

typedef struct {
    char name[64];
    int who; /* whose outputs it has */
    Passes passes;
    double cost;
    char note[160]; /* why it has no figures */
} Expected;

static int prepares(int who, const Problem *p) {
    const Variant *v = who < MAX_VARIANTS ? &stage.variants[who] : NULL;
    return v && v->preparation && (!v->preparation->wanted || v->preparation->wanted(p));
}

/* Such a variant is not held against 00_naive. */
static int rounds(int who, const Problem *p) {
    const Preparation *preparation = prepares(who, p) ? stage.variants[who].preparation : NULL;
    return preparation && preparation->values && (!preparation->changes || preparation->changes(p));
}

/* only: a variant's number, alone and without a reference; -1: all. */
static int expected_rows(const Problem *p, int only, Expected *rows) {
    int n = 0, has_pre_pass = 0;
    Passes passes = stage.forward ? BACKWARD_PASS : FORWARD_PASS;
    memset(rows, 0, ROWS * sizeof *rows);
    if (stage.forward) {
        rows[n] = (Expected){"", FIRST_PASS, FORWARD_PASS, COST[FIRST_PASS], ""};
        strcpy(rows[n++].name, stage.forward->name);
    }
    if (only < 0)
        rows[n++] = (Expected){"00_naive", REFERENCE, passes, COST[REFERENCE], ""};
    for (int i = 0; i < MAX_VARIANTS && stage.variants[i].name; i++) {
        const Variant *v = &stage.variants[i];
        if (only >= 0 && only != i)
            continue;
        Expected row = {"", i, passes, COST[i], ""};
        const char *reason = variant_refuses(v, p);
        snprintf(row.name, sizeof row.name, "%s/%s", stage.name, v->name);
        if (reason)
            snprintf(row.note, sizeof row.note, "not run: %s", reason);
        rows[n++] = row;
        if (reason)
            continue;
        if (stage.forward && !v->devices) {
            row.passes = BOTH;
            row.cost = COST[FIRST_PASS] + COST[i];
            rows[n++] = row;
        }
        if (!prepares(i, p))
            continue;
        if (!has_pre_pass++) {
            rows[n] = (Expected){"", i, PREPARE, COST[PRE_PASS], ""};
            snprintf(rows[n++].name, sizeof row.name, "%s/%s", stage.name, v->preparation->name);
        }
        rows[n] = (Expected){"", i, WITH_PREPARE, COST[PRE_PASS] + COST[i], ""};
        snprintf(rows[n++].name, sizeof row.name, "%s/%s+%s", stage.name, v->preparation->name, v->name);
    }
    return n;
}

/* ---- figures, a second time ---- */

/* Decoding: K and V as far as keys exist, in the cache's format where there is one. */
static double bytes_to_move(const Problem *p, const int *lengths, const Expected *row) {
    double keys = 0, cached = row->who < MAX_VARIANTS && rounds(row->who, p);
    for (int b = 0; b < p->batch; b++)
        keys += p->kv_heads * (lengths ? lengths[b] : p->seqlen_k);
    if (stage.kind == DECODING)
        return 2 * keys * p->head_dim * (cached ? 1 : p->dtype == DTYPE_FP32 ? 4 : 2) + tensor_sizes(p, 2, 0, 1);
    double both = 2 * keys * p->head_dim * (p->dtype == DTYPE_FP32 ? 4 : 2); /* K and V */
    double forward = both + tensor_sizes(p, 2, 0, 1),
           backward = both + tensor_sizes(p, 4, 2, 1); /* Q, O, dO, dQ; dK, dV; LSE */
    return row->passes == BACKWARD_PASS ? backward : row->passes == BOTH ? forward + backward : forward;
}

static double allocated_bytes(const Problem *p, const int *lengths, const Expected *row) {
    int is_gradient = row->passes == BACKWARD_PASS || row->passes == BOTH;
    double bytes = tensor_sizes(p, 2, 2, 1) + (lengths ? 4.0 * p->batch : 0);
    bytes += p->score && p->score->score.sinks ? 4.0 * p->heads * (is_gradient ? 2 : 1) : 0; /* and their gradient */
    return bytes + (stage.forward ? tensor_sizes(p, 1, 0, 0) : 0) + (is_gradient ? tensor_sizes(p, 1, 2, 0) : 0);
}

/* Of a stage that figures.h does not know, what its plan says; else what is worked out there. */
static int pieces_of(const char *name, int who, const Problem *p, Piece *pieces) {
    char variant[80];
    if (who == REFERENCE && stage.forward)
        snprintf(variant, sizeof variant, "%s/%s", stage.name, name);
    else if (who < MAX_VARIANTS)
        snprintf(variant, sizeof variant, "%s/%s", stage.name, stage.variants[who].name);
    else
        snprintf(variant, sizeof variant, "%s", name);
    if (is_worked_out(stage.name) || strcmp(variant, "00_naive") == 0)
        return workspace_pieces(variant, p, pieces);
    Buffer plan[MAX_WORKSPACE_BUFFERS] = {{0}};
    int count = original[who]->plan ? original[who]->plan(p, plan) : 0;
    for (int i = 0; i < count; i++)
        pieces[i] = (Piece){plan[i].purpose, (double)plan[i].bytes, plan[i].zeroed};
    return count;
}

/* The errors of O against fp64, over the whole tensor: these problems are so small that every row is a sample. */
static void fp64_errors(const Problem *p, const int *lengths, const void *o, double *rms, double *worst) {
    Samples exact = samples_compute(p, lengths, &(HostTensors){inputs[0], inputs[1], inputs[2], NULL}, row_count(p));
    double sum = 0;
    *worst = 0;
    for (size_t e = 0; e < query_elements(p); e++) {
        double error = fabs(dtype_to_double(p->dtype, o, e) - exact.o[e]);
        sum += error * error / (double)query_elements(p);
        *worst = fmax(*worst, error);
    }
    *rms = sqrt(sum);
    free_samples(&exact);
}

/* Whether two results differ somewhere by just that much, and nowhere by more than a hundred times as much. */
static int is_a_difference(const Problem *p, int who, int other, double error) {
    int found = 0, tensors = stage.forward ? 3 : 1;
    double largest = 0;
    for (int i = 0; i < tensors; i++)
        for (size_t e = 0; e < (i ? key_elements(p) : query_elements(p)); e++) {
            double difference =
                fabs(dtype_to_double(p->dtype, kept[who][i], e) - dtype_to_double(p->dtype, kept[other][i], e));
            found |= fabs(difference - error) <= 1e-12;
            largest = fmax(largest, difference);
        }
    return found && largest <= 100 * error;
}

/* ---- fields ---- */

typedef struct {
    char keys[48][24], texts[48][200]; /* a JSON null, and an empty CSV field: "" */
    int count;
} Fields;

static Fields parse_json(const char *line) {
    Fields f = {.count = 0};
    for (const char *at = strchr(line, '"'); at && f.count < 48; at = strchr(at, '"')) {
        int used = 0;
        char *key = f.keys[f.count], *text = f.texts[f.count++];
        if (sscanf(at, "\"%23[^\"]\": %n", key, &used) < 1 || !used)
            break;
        at += used;
        size_t length = *at == '"' ? strcspn(at + 1, "\"") : strcspn(at, ",}");
        snprintf(text, sizeof f.texts[0], "%.*s", (int)length, at + (*at == '"'));
        at += length + 2 * (*at == '"');
        if (strcmp(text, "null") == 0)
            *text = 0;
    }
    return f;
}

static const char *text_of(const Fields *f, const char *key) {
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->keys[i], key) == 0)
            return f->texts[i];
    return "there is no such field";
}
static double number_of(const Fields *f, const char *key) {
    char *end;
    const char *text = text_of(f, key);
    double number = strtod(text, &end);
    return *text && !*end ? number : NAN;
}

static void is_text(const char *row, const Fields *f, const char *key, const char *want) {
    if (strcmp(text_of(f, key), want) != 0)
        wrong(row, key, text_of(f, key), want);
}
/* NaN: null. */
static void is_number(const char *row, const Fields *f, const char *key, double want) {
    char text[32];
    snprintf(text, sizeof text, "%.15g", want);
    if (isnan(want))
        is_text(row, f, key, "");
    else if (!(fabs(number_of(f, key) - want) <= 1e-9 * fabs(want)))
        wrong(row, key, text_of(f, key), text);
}

/* A bound may be too wide to say that a tensor is right (row.h): the verdict's matter, the row's figures stay what they are. */
static int is_partly_unchecked(const Fields *f) { return strncmp(text_of(f, "note"), "not checked", 11) == 0; }
static int is_unchecked(const Fields *f) {
    static const char *const written[2][4] = {{" O by ", " LSE by "}, {" dQ by ", " dK by ", " dV by "}};
    const char *const *names = written[!strcmp(text_of(f, "direction"), "backward")];
    while (*names && strstr(text_of(f, "note"), *names))
        names++;
    return is_partly_unchecked(f) && !*names;
}

/* The device says that it is an H100 of 1 GHz, or nothing. 8-bit products are twice as fast. */
static double peak_of(const Expected *row) {
    const DeviceProperties *device = device_properties();
    double peak = 4096e-6 * device->sm_count * device->clock_mhz;
    return !device->chip ? NAN : strncmp(stage.name, "06", 2) == 0 && row->who < MAX_VARIANTS ? 2 * peak : peak;
}

static const Variant *variant_of(const Expected *row) { return original[row->who]; }

/* By the stage's formulas, which the trace holds against what the kernels do. */
static double gpu_bytes_of(const Problem *p, const int *lengths, const Expected *row) {
    const Variant *v = variant_of(row);
    Traffic traffic[MAX_TRAFFIC];
    double bytes = 0;
    int count = row->passes == PREPARE ? 0 : v->predict(p, lengths, traffic);
    if (row->passes == BOTH)
        count += stage.forward->predict(p, lengths, traffic + count);
    if (row->passes == PREPARE || row->passes == WITH_PREPARE)
        count += v->preparation->predict(p, lengths, traffic + count);
    for (int i = count; i-- > 0;)
        bytes += traffic[i].read + traffic[i].written;
    return bytes;
}

/* A row's fields against what is known of it. `sample`: of times its cost. */
static void check_fields(const Printed *out, const Expected *row, const Fields *f, Sample sample, const char *l2,
                         const char *kind) {
    static const char *direction_names[] = {[FORWARD_PASS] = "forward", [BACKWARD_PASS] = "backward", [BOTH] = "both",
                                            [PREPARE] = "prepare", [WITH_PREPARE] = "prepare and forward"};
    const Problem *p = &out->p;
    const DeviceProperties *device = device_properties();
    int ran = !*row->note, is_counted = row->passes != PREPARE && ran, no_memory = strncmp(row->note, "out of", 6) == 0;
    int is_validated =
        ran && !strstr(out->options, "--no-validate") && (row->passes == FORWARD_PASS || row->passes == BACKWARD_PASS);
    double ms = sample.median * row->cost, rms = NAN, worst = NAN;
    double tflops = flops_of(p, out->lengths, row->passes) / (ms * 1e9);
    is_text(row->name, f, "stage", stage.name);
    is_text(row->name, f, "variant", row->name);
    is_text(row->name, f, "direction", direction_names[row->passes]);
    is_number(row->name, f, "batch", p->batch);
    is_number(row->name, f, "heads", p->heads);
    is_number(row->name, f, "kv_heads", p->kv_heads);
    is_number(row->name, f, "seqlen_q", p->seqlen_q);
    is_number(row->name, f, "seqlen_k", p->seqlen_k);
    is_number(row->name, f, "head_dim", p->head_dim);
    is_text(row->name, f, "dtype", p->dtype == DTYPE_FP16 ? "fp16" : "bf16");
    is_text(row->name, f, "causal", p->causal ? "true" : "false");
    is_text(row->name, f, "lengths", out->lengths ? "33;20" : "");
    is_number(row->name, f, "scale", p->scale);
    is_text(row->name, f, "inputs", kind);
    is_number(row->name, f, "seed", out->seed);
    is_text(row->name, f, "l2", l2);
    is_number(row->name, f, "iters", sample.runs);
    is_number(row->name, f, "runs", ran ? sample.runs : NAN);
    is_number(row->name, f, "latency_ms", ran ? ms : NAN);
    is_number(row->name, f, "min_ms", ran ? row->cost : NAN);
    is_number(row->name, f, "iqr_ms", ran ? sample.iqr * row->cost : NAN);
    is_text(row->name, f, "noisy", ran ? "true" : "");
    is_number(row->name, f, "tflops", is_counted ? tflops : NAN);
    Problem dense = *p;
    dense.blocks = NULL;
    is_number(row->name, f, "dense_tflops",
              is_counted && p->blocks ? flops_of(&dense, out->lengths, row->passes) / (ms * 1e9) : NAN);
    is_number(row->name, f, "percent_of_peak", is_counted ? 100 * tflops / peak_of(row) : NAN);
    is_number(row->name, f, "gbps", is_counted ? bytes_to_move(p, out->lengths, row) / (ms * 1e6) : NAN);
    is_number(row->name, f, "tensor_bytes", allocated_bytes(p, out->lengths, row));
    Piece pieces[MAX_WORKSPACE_BUFFERS];
    double workspace = no_memory ? UNAVAILABLE : 0;
    for (int i = pieces_of(row->name, row->who, p, pieces); ran && i-- > 0;)
        workspace += pieces[i].bytes;
    if (row->passes == BOTH) /* and that of the forward pass */
        for (int i = pieces_of(stage.forward->name, FIRST_PASS, p, pieces); ran && i-- > 0;)
            workspace += pieces[i].bytes;
    is_number(row->name, f, "workspace_bytes", workspace);
    double gpu_bytes = ran ? gpu_bytes_of(p, out->lengths, row) : NAN;
    is_number(row->name, f, "gpu_bytes", gpu_bytes);
    is_number(row->name, f, "gpu_flops_per_byte", is_counted ? flops_of(p, out->lengths, row->passes) / gpu_bytes : NAN);
    is_number(row->name, f, "read_gbps", stage.kind == DECODING ? BANDWIDTH.read_gbps : NAN);
    is_number(row->name, f, "copy_gbps", stage.kind == DECODING ? BANDWIDTH.copy_gbps : NAN);
    if (is_validated && row->passes == FORWARD_PASS)
        fp64_errors(p, out->lengths, kept[row->who][0], &rms, &worst);
    is_number(row->name, f, "rmse", rms);
    is_number(row->name, f, "worst_fp64_error", worst);

    double error = number_of(f, "worst_error"), allowed = number_of(f, "allowed_error");
    if (is_validated != (error <= allowed) || is_validated != (allowed > 0))
        wrong(row->name, "worst_error", text_of(f, "worst_error"), "an error within what is allowed, or nothing");
    if (is_validated && row->who < MAX_VARIANTS && kept[REFERENCE][0] && !rounds(row->who, p) &&
        !is_a_difference(p, row->who, REFERENCE, error))
        wrong(row->name, "worst_error", text_of(f, "worst_error"), "a difference from 00_naive");
    int against_oracle = row->who == REFERENCE || (!kept[REFERENCE][0] && row->who < MAX_VARIANTS && !rounds(row->who, p));
    if (is_validated && against_oracle && !stage.forward &&
        !(error <= worst * (1 + 1e-14) && worst <= 100 * error)) /* 15 digits */
        wrong(row->name, "worst_error", text_of(f, "worst_error"), "an error against fp64");
    is_text(row->name, f, "ok", is_validated && !is_unchecked(f) ? "true" : "");

    is_text(row->name, f, "device", device->name);
    is_number(row->name, f, "clock_mhz", device->clock_mhz ? device->clock_mhz : NAN);
    is_text(row->name, f, "cuda", device->cuda_version);
    if (!*text_of(f, "commit"))
        wrong(row->name, "commit", "", "something");
    if (!is_validated || !is_partly_unchecked(f))
        is_text(row->name, f, "note", row->note);
}

/* The clock was asked for each row that ran, so often, and with a cold L2 unless --warm. What runs on several GPUs is replayed, and
 * run once more without. */
static void check_sessions(const Expected *rows, int count, int runs, int warm) {
    int n = 0, replays = 0;
    for (int i = 0; i < count; i++) {
        if (*rows[i].note)
            continue;
        const Session *s = &sessions[n++];
        const int is_cpu = device_properties()->is_cpu, on_several = s->variant->devices && !is_cpu;
        const int is_replayed = on_several || (stage.kind == DECODING && rows[i].passes == FORWARD_PASS && !is_cpu);
        replays += is_replayed;
        failures += is_cpu && s->contexts != 1;
        if (s->passes != rows[i].passes || s->runs != runs + on_several || (stage.kind != DECODING && !on_several && s->warm != warm)) {
            diag("%s: %d runs, warm %d", rows[i].name, s->runs, s->warm);
            failures++;
        }
    }
    failures += n != session_count || replays_ended != replays;
}

/* ---- tests ---- */

static const int LENGTHS[] = {33, 20};
#define SMALL "--batch 2 --heads 4 --kv-heads 2 --seqlen 7 --seqlen-k 33 --head-dim 64 --causal --lengths 33,20 --iters 4"

/* A setting's value in a word: 3, on, or the value-th of its choices. */
static const char *setting_word(int which, int value) {
    static char word[64];
    const Setting *setting = &stage.settings[which];
    const char *choice = setting->choices ? setting->choices : "off|on";
    if (setting->max && value)
        snprintf(word, sizeof word, "%d", value);
    else
        snprintf(word, sizeof word, "%.*s", (int)strcspn(choice + value * (strcspn(choice, "|") + 1), "|"),
                 choice + value * (strcspn(choice, "|") + 1));
    return word;
}

/* The rows of a run as JSON, every field. report.c holds that CSV and the table show the same. */
static void test_rows(const char *name, const char *settings, Problem p) {
    char options[200];
    Printed json = {.options = options, .p = p, .lengths = LENGTHS};
    Expected rows[ROWS];
    int count = expected_rows(&p, -1, rows);
    snprintf(options, sizeof options, SMALL "%s", settings);
    forget();
    run_program(&json, " --json");
    int all = count == json.line_count ? count : 0;
    ok(all, "%s: %d rows", name, count);
    int code = 0;
    for (int i = 0; i < all; i++) {
        failures = 0;
        Fields fields = parse_json(json.lines[i]);
        check_fields(&json, &rows[i], &fields, FOUR, "cold", "normal");
        code = is_unchecked(&fields) ? 2 : code;
        char words[200] = "";
        for (int s = 0; s < MAX_SETTINGS && stage.settings[s].name; s++)
            if (stage.settings[s].max == TEXT)
                snprintf(words, sizeof words, "%s=%s", stage.settings[s].name, p.blocks  ? p.blocks->text
                                                                                    : p.score         ? p.score->text
                                                                                    : stage.read_score ? "none"
                                                                                                       : "all");
            else
                snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s=%s", s ? ";" : "", stage.settings[s].name,
                     setting_word(s, p.settings[s]));
        is_text(rows[i].name, &fields, "settings", words);
        ok(!failures, "%s: %s: %s, every field", name, rows[i].name, text_of(&fields, "direction"));
    }
    failures = 0;
    check_sessions(rows, all, 4 + !device_properties()->is_cpu, 0);
    ok(!failures && json.code == code, "%s: --iters 4: four runs a row, L2 cold; exit code %d", name, code);
    free(json.text);
}

/* Whether a line of the table is this row's; and whether it has a number of times, "12.3x", in it. */
static int is_line_of(const char *line, const Expected *row) {
    size_t length = strlen(row->name);
    return strncmp(line, row->name, length) == 0 && line[length] == ' ' &&
           (stage.kind != BACKWARD || !strstr(line, " both ") == (row->passes != BOTH));
}
static int shows_ratio(const char *line) {
    int shows = 0;
    for (const char *c = line; *c; c++)
        shows |= *c >= '0' && *c <= '9' && c[1] == 'x' && c[2] == ' ';
    return shows;
}

/* As a GPU is timed: with a run that does not count. And options that the other runs have not. */
static void test_other_options(void) {
    DeviceProperties *device = (DeviceProperties *)device_properties();
    const int is_cpu = device->is_cpu;
    const size_t l2_bytes = device->l2_bytes;
    Printed json = {.options = "--batch 1 --heads 3 --seqlen 9 --seqlen-k 70 --head-dim 128 --dtype bf16 --warm --seed 5 "
                               "--inputs outliers --iters 5",
                    .seed = 5};
    json.p = (Problem){.batch = 1,
                       .heads = 3,
                       .kv_heads = 3,
                       .seqlen_q = 9,
                       .seqlen_k = 70,
                       .head_dim = 128,
                       .dtype = DTYPE_BF16,
                       .scale = 1 / sqrtf(128)};
    Expected rows[ROWS];
    int count = expected_rows(&json.p, -1, rows);
    forget();
    device->is_cpu = 0;
    run_program(&json, " --json");
    int all = count == json.line_count ? count : 0;
    ok(all, "other options: %d rows", count);
    int code = 0;
    failures = 0;
    for (int i = 0; i < all; i++) {
        Fields f = parse_json(json.lines[i]);
        check_fields(&json, &rows[i], &f, FIVE, "warm", "outliers");
        code = is_unchecked(&f) ? 2 : code;
    }
    check_sessions(rows, all, 1 + 5, 1);
    for (int i = 0; stage.kind == DECODING && i < session_count; i++)
        failures += sessions[i].contexts != 20 || sessions[i].copies != 1;
    ok(!failures && json.code == code, "other options: every field; a run to warm up and five more; --warm");

    /* no field has it: how many times faster than 00_naive */
    run_program(&json, "");
    failures = 0;
    for (int i = 0; i < all; i++) {
        char ratio[32];
        double times = COST[REFERENCE] / rows[i].cost;
        snprintf(ratio, sizeof ratio, " %.*fx ", times >= 100 ? 0 : times >= 10 ? 1 : 2, times);
        int is_shown = 0, has_one = (rows[i].passes == FORWARD_PASS || rows[i].passes == BACKWARD_PASS) && rows[i].who != FIRST_PASS;
        for (int k = 0; k < json.line_count; k++)
            is_shown |= is_line_of(json.lines[k], &rows[i]) && (has_one ? strstr(json.lines[k], ratio) != NULL : shows_ratio(json.lines[k]));
        failures += !*rows[i].note && has_one != is_shown;
    }
    ok(!failures, "other options: the table has each variant's speed over 00_naive's");

    failures = 0;
    for (int i = 0; i < (stage.kind == BACKWARD ? 4 : 3); i++) {
        void *want = random_input(&json.p, i, 5, 1);
        failures += !inputs[i] || memcmp(inputs[i], want, bytes_of(&json.p, i == 0 || i == 3)) != 0;
        free(want);
    }
    ok(!failures, "other options: the kernels were given the inputs of --seed 5 with outliers");

    if (stage.kind == DECODING) { /* 12 KB of K and V: not so many copies that L2 would be full, but as many as there may be */
        json.options = "--batch 1 --heads 3 --seqlen 9 --seqlen-k 70 --head-dim 128 --dtype bf16 --iters 1 --no-validate";
        run_program(&json, " --json");
        failures = 0;
        for (int i = 0; i < session_count; i++)
            failures += sessions[i].contexts != 64 || sessions[i].copies != 64;
        ok(!failures, "a cold L2: each launch of a replay has keys of its own");
        unavailable = "K", available = 1 + 5; /* the inputs and five copies; none for the next row */
        run_program(&json, " --json");
        unavailable = NULL;
        ok(session_count == 3 && sessions[0].contexts == 5 && sessions[0].copies == 5 && sessions[1].contexts == 20 &&
               sessions[1].copies == 1,
           "fewer copies where there is no memory for more, and without any the inputs themselves");
        json.options =
            "--batch 1 --heads 3 --seqlen 9 --seqlen-k 70 --head-dim 128 --iters 1 --no-validate --variant split_k "
            "--kv-cache e4m3";
        unavailable = "K", available = 1 + 3;
        run_program(&json, " --json");
        unavailable = NULL;
        ok(sessions[0].copies == 3 && launches[PRE_PASS] == 1 + 3, "each copy has an 8-bit cache of its own");
        json.options = "--heads 8 --kv-heads 8 --seqlen-k 5000 --head-dim 128 --iters 1 --no-validate --variant one_block";
        device->l2_bytes = 60 << 20;
        run_program(&json, " --json"); /* 20.5 MB of K and V */
        ok(session_count == 1 && sessions[0].copies == 13,
           "and 13 copies of 20.5 MB are the first that are more than 256 MB");
        device->l2_bytes = 126 << 20;
        run_program(&json, " --json");
        device->l2_bytes = l2_bytes;
        ok(session_count == 1 && sessions[0].copies == 26, "for an L2 of 126 MiB the first that are more than four of it");
    }
    device->is_cpu = is_cpu;
    free(json.text);
}

/* Without a reference, and with one that does not fit; outputs that do not fit. */
static void test_less(Problem p) {
    DeviceProperties *device = (DeviceProperties *)device_properties();
    const int chip = device->chip;
    device->chip = 0;
    char options[200];
    Printed json = {.options = options, .p = p, .lengths = LENGTHS};
    Expected rows[ROWS];
    int last = 0;
    while (last + 1 < MAX_VARIANTS && stage.variants[last + 1].name)
        last++;
    for (int less = 0; less < 3 && stage.variants[0].name; less++) {
        int count = expected_rows(&p, less == 0 ? last : -1, rows), first = stage.forward ? 1 : 0;
        snprintf(options, sizeof options, SMALL "%s%s", less == 0 ? " --no-validate --variant " : "",
                 less == 0 ? stage.variants[last].name : "");
        forget();
        failures = 0;
        if (less == 1) { /* nor may what 8-bit variants are compared with: the oracle will have to do */
            timed_reference.plan = too_large;
            unavailable = "the reference's tensors", available = 0;
            snprintf(rows[first].note, sizeof rows[first].note, "out of memory: needs 3.00 GiB");
        } else if (less == 2) {
            unavailable = stage.forward ? "dV" : "LSE", available = 0;
        }
        run_program(&json, " --json");
        unavailable = NULL;
        timed_reference.plan = original[REFERENCE]->plan;
        if (less < 2) {
            int code = 0;
            for (int i = 0; i < count && i < json.line_count; i++) {
                Fields f = parse_json(json.lines[i]);
                check_fields(&json, &rows[i], &f, FOUR, "cold", "normal");
                code = is_unchecked(&f) ? 2 : code;
            }
            failures += json.code != code || json.line_count != count;
            check_sessions(rows, count, 4 + !device_properties()->is_cpu, 0);
        } else {
            failures += json.code != 2 || session_count != first;
            for (int i = first; i < json.line_count; i++) {
                Fields f = parse_json(json.lines[i]);
                Cell bytes;
                char note[100];
                print_bytes(bytes, number_of(&f, "tensor_bytes") + number_of(&f, "workspace_bytes"));
                snprintf(note, sizeof note, "out of memory: needs %s", bytes);
                if (strcmp(text_of(&f, "note"), note) != 0)
                    is_text(text_of(&f, "variant"), &f, "note", "out of memory, or a reason");
            }
        }
        ok(!failures, "%s",
           (const char *[]){"one variant, not validated", "no memory for 00_naive", "no memory for outputs"}[less]);
    }
    device->chip = chip;
    free(json.text);
}

/* Memory without which nothing can run: one line on stderr, exit code 2. */
static void run_without(void *purpose) {
    unavailable = purpose, available = 0;
    run_program(&(Printed){.options = SMALL}, " --json");
}
static void test_nothing(void) {
    static const struct {
        const char *purpose, *message;
    } cases[] = {{"V", "out of device memory: V needs 16.5 KiB in addition to the 23.5 KiB in use"},
                 {"O", "the forward pass: out of memory: needs 54.2 KiB"}};
#ifdef __SANITIZE_ADDRESS__
    return; /* it looks for leaks in the child, and does not find its threads */
#endif
    if (device_properties()->cuda_version[0])
        return; /* CUDA does not work in a child */
    for (int i = 0; i < (stage.forward ? 2 : 1); i++) {
        char want[200], *got = said(run_without, (void *)cases[i].purpose);
        snprintf(want, sizeof want, "%s: %s\n", stage.name, cases[i].message);
        if (!ok(strcmp(got, want) == 0, "no memory for %s", cases[i].purpose))
            diag("%s", got);
        free(got);
    }
}

/* What a terminal would be told while the program runs; a "." where that ends. */
static char told[4096];
void __wrap_show_progress(const char *text, ...) {
    size_t used = strlen(told);
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(told + used, sizeof told - used, text, arguments);
    va_end(arguments);
}
void __wrap_end_progress(void) { strncat(told, ".", sizeof told - 1 - strlen(told)); }

static void test_progress(Problem p) {
    Printed json = {.options = SMALL};
    Expected rows[ROWS];
    char want[sizeof told] = "";
    size_t used = 0;
    int count = expected_rows(&p, -1, rows);
    *told = 0;
    run_program(&json, " --json");
    for (int i = 0; i < count; i++) {
        const char *name = rows[i].name;
        if (*rows[i].note)
            continue;
        if (rows[i].passes == FORWARD_PASS || rows[i].passes == BACKWARD_PASS)
            used += (size_t)snprintf(want + used, sizeof want - used, "%s: running ...%s: checking ...", name, name);
        for (int run = 1; run <= 4; run++)
            used += (size_t)snprintf(want + used, sizeof want - used, "%s: timing %d ...", name, run);
        used += (size_t)snprintf(want + used, sizeof want - used, ".");
    }
    if (!ok(strcmp(told, want) == 0, "progress: each variant, what is done with it, and which run"))
        diag("told %s, expected %s", told, want);
    free(json.text);
}

/* A backward variant whose third launch, of those that follow for the spread the second, leaves another dK. */
static void test_spread(void) {
    Printed table = {.options = "--heads 2 --seqlen 7 --seqlen-k 33 --head-dim 64 --iters 1"};
    forget();
    other_launch = 3;
    run_program(&table, "");
    other_launch = 0;
    failures = 0;
    for (int i = 0; i < MAX_VARIANTS && stage.variants[i].name; i++) {
        char name[80], spread[60], *line = NULL;
        snprintf(name, sizeof name, "gradients  %s/%s: ", stage.name, stage.variants[i].name);
        snprintf(spread, sizeof spread, "4 runs differ by up to %.1e", other_by);
        for (int k = 0; k < table.line_count; k++)
            if (strncmp(table.lines[k], name, strlen(name)) == 0)
                line = table.lines[k];
        failures += !line || !strstr(line, spread) || launches[i] != 4;
    }
    ok(!failures && other_by > 0.2, "the spread is by how much one of four runs is off, in one element");
    free(table.text);
}

/* plan() of every variant, over shapes and settings. */
static void test_workspace(void) {
    static const Problem shapes[] = {
        {.batch = 1, .heads = 2, .kv_heads = 2, .seqlen_q = 7, .seqlen_k = 33, .head_dim = 64},
        {.batch = 2, .heads = 4, .kv_heads = 2, .seqlen_q = 16, .seqlen_k = 64, .head_dim = 64, .causal = 1},
        {.batch = 3, .heads = 8, .kv_heads = 1, .seqlen_q = 5, .seqlen_k = 129, .head_dim = 128, .dtype = DTYPE_BF16},
        {.batch = 1, .heads = 5, .kv_heads = 5, .seqlen_q = 1, .seqlen_k = 1000, .head_dim = 64},
        {.batch = 2, .heads = 6, .kv_heads = 3, .seqlen_q = 300, .seqlen_k = 128, .head_dim = 128, .causal = 1},
        {.batch = 1, .heads = 4, .kv_heads = 2, .seqlen_q = 9, .seqlen_k = 65, .head_dim = 64, .dtype = DTYPE_FP32},
        {.batch = 40, .heads = 32, .kv_heads = 8, .seqlen_q = 10000, .seqlen_k = 20000, .head_dim = 128}};
    static const int settings[][4] = {{0}, {1}, {2}, {3, 0, 0}, {0, 100, 0}, {0, 5000, 1}, {0, 0, 1}, {0, 0, 0, 2}};
    const Variant *reference = stage.reference ? stage.reference : &naive_variant;
    for (int who = -1; who < MAX_VARIANTS && (who < 0 || stage.variants[who].name); who++) {
        const Variant *v = who < 0 ? reference : &stage.variants[who];
        int seen = 0;
        failures = 0;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes * 8; i++) {
            Problem p = shapes[i / 8];
            memcpy(p.settings, settings[i % 8], sizeof settings[0]);
            for (int s = 0; s < MAX_SETTINGS; s++) /* only values that the stage's options can have */
                if (!stage.settings[s].name || stage.settings[s].max == TEXT || (p.settings[s] > 2 && !stage.settings[s].max))
                    p.settings[s] = 0;
            if (variant_refuses(v, &p))
                continue;
            Buffer plan[MAX_WORKSPACE_BUFFERS] = {{0}};
            Piece pieces[MAX_WORKSPACE_BUFFERS];
            int got = v->plan ? v->plan(&p, plan) : 0, want = pieces_of("00_naive", who < 0 ? REFERENCE : who, &p, pieces);
            failures += got != want;
            for (int k = 0; k < got && k < want; k++)
                if (strcmp(plan[k].purpose, pieces[k].purpose) != 0 || (double)plan[k].bytes != pieces[k].bytes ||
                    plan[k].zeroed != pieces[k].zeroed) {
                    diag("seqlen %dx%d: %s has %zu bytes, %s needs %.0f", p.seqlen_q, p.seqlen_k, plan[k].purpose,
                         plan[k].bytes, pieces[k].purpose, pieces[k].bytes);
                    failures++;
                }
            seen++;
        }
        ok(!failures && seen > 3, "%s: workspace of %d problems", v->name, seen);
    }
}

/* sm_75 has 64 KB of shared memory a block, and smaller tiles; the CPU device cannot run what is made for it, so that no trace
 * shows it. Bytes read, by hand: so many tiles, times the rows of each, times D and 2 bytes (4: fp32). */
static void test_sm_75(void) {
    static const struct {
        const char *stage, *variant, *kernel, *tensor; /* variant NULL: the forward pass */
        int seqlen_q, seqlen_k, head_dim, causal;
        double bytes;
    } cases[] = {
        {"03_fa1", "fa1", "fa1_kernel", "Q", 64, 1000, 64, 0, 8. * 64 * 64 * 2}, /* 128 keys per tile */
        {"04_fa2", "epilogue", "epilogue_kernel", "Q", 64, 1000, 128, 0, 16. * 64 * 128 * 2},
        {"04_fa2", "tuned", "tuned", "K", 129, 193, 64, 1,
         (3. * 64 + 193) * 64 * 2}, /* rows 0 to 127 see 192 keys, 128 all */
        {"04_fa2", "tuned", "tuned", "K", 129, 161, 128, 1, (5. * 32 + 161) * 128 * 2},
        {"10_block_sparse", "masked", "masked", "K", 129, 193, 64, 1, (3. * 64 + 193) * 64 * 2},
        {"05_fa2_backward", NULL, "tuned", "V", 129, 193, 64, 1, (3. * 64 + 193) * 64 * 2},
        {"05_fa2_backward", "two_pass", "key_gradients", "Q", 256, 256, 128, 0, 8. * 256 * 128 * 2}, /* 32 x 32 */
        {"05_fa2_backward", "two_pass", "key_gradients", "dO", 256, 256, 64, 0, 4. * 256 * 64 * 2},  /* 64 x 64 */
        {"05_fa2_backward", "two_pass", "query_gradients", "K", 256, 256, 128, 0, 4. * 256 * 128 * 2},
        {"05_fa2_backward", "two_pass", "query_gradients", "delta", 40, 256, 128, 0, 4. * 64 * 4},
        {"05_fa2_backward", "atomic", "backward_atomic", "dQ accumulator", 256, 256, 128, 0, 8. * 256 * 128 * 4},
        {"05_fa2_backward", "atomic", "backward_atomic", "Q", 256, 256, 64, 0, 4. * 256 * 64 * 2},
    };
    DeviceProperties *device = (DeviceProperties *)device_properties();
    const DeviceProperties saved = *device;
    device->capability = 75, device->shared_bytes = 65536;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].stage, stage.name) != 0)
            continue;
        const Variant *v = cases[i].variant ? stage.variants : stage.forward;
        while (cases[i].variant && strcmp(v->name, cases[i].variant) != 0)
            v++;
        Problem p = {.batch = 1,
                     .heads = 1,
                     .kv_heads = 1,
                     .seqlen_q = cases[i].seqlen_q,
                     .seqlen_k = cases[i].seqlen_k,
                     .head_dim = cases[i].head_dim,
                     .causal = cases[i].causal};
        Traffic traffic[MAX_TRAFFIC];
        int count = v->predict(&p, NULL, traffic);
        double got = 0;
        for (int k = 0; k < count; k++)
            if (strcmp(traffic[k].kernel, cases[i].kernel) == 0 && strcmp(traffic[k].tensor, cases[i].tensor) == 0)
                got += traffic[k].read;
        if (!ok(got == cases[i].bytes, "sm_75: %s of %s, D = %d", cases[i].tensor, cases[i].kernel, p.head_dim))
            diag("%.0f bytes, expected %.0f", got, cases[i].bytes);
    }
    *device = saved;
}

int main(void) {
    Problem p = {
        .batch = 2, .heads = 4, .kv_heads = 2, .seqlen_q = 7, .seqlen_k = 33, .head_dim = 64, .causal = 1, .scale = 0.125};
    DeviceProperties *device = (DeviceProperties *)device_properties();
    device->chip = 90, device->clock_mhz = 1000;
    make_timed_stage();
    test_rows("plain", "", p);
    for (int s = 0; s < MAX_SETTINGS && stage.settings[s].name; s++) { /* each of them away from its default */
        const Setting *setting = &stage.settings[s];
        int is_flag = !setting->choices && !setting->max;
        char option[64];
        Problem other = p;
        if (setting->max == TEXT && stage.read_score)
            other.score = stage.read_score(setting->name, "softcap:3+window:8,1+sink", &p);
        else if (setting->max == TEXT)
            other.blocks = stage.read_mask(setting->name, "window:9", &p);
        else
            other.settings[s] = setting->max ? 3 : 1;
        snprintf(option, sizeof option, " --%s %s", setting->name,
                 other.blocks ? other.blocks->text : other.score ? other.score->text : is_flag ? "" : setting_word(s, other.settings[s]));
        test_rows(option + 1, option, other);
        free((void *)other.blocks), free((void *)other.score);
    }
    test_other_options();
    test_less(p);
    test_nothing();
    test_progress(p);
    test_workspace();
    test_sm_75();
    if (stage.forward)
        test_spread();
    forget();
    return tap_done();
}
