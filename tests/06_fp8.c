/* 06_fp8.c - do the options of 06_fp8 do what they say? What the pre-pass leaves (scales, mean, shift of LSE, codes) is
 * held against a plain fp64 computation of each, and each remedy must make the error of O smaller on inputs of its kind,
 * with key lengths, too. Runs on both devices.
 */
#include "../06_fp8/fp8.h"
#include "../common/device/device.h"
#include "../common/harness/tensors.h"
#include "../common/harness/variant.h"
#include "../common/numeric.h"
#include "../common/judge/oracle.h"
#include "../common/judge/prepared.h"
#include "../common/host/memory.h"
#include "../common/host/random.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

extern const Stage stage;

enum { BATCH = 2, HEADS = 2, ROWS = 260, MAX_D = 128 };
typedef enum {
    NORMAL,
    OUTLIERS,
    ALIKE,
    GROWING,
    TINY,
    TINIER,
    EQUAL_KEYS,
    RISING,
    FALLING
} Inputs; /* ALIKE: keys have a mean; GROWING: V from key 128 on is 2^16 times what it was; TINY: Q and K times 1e-23, TINIER: Q, K
             and V times 1e-33, below what a scale maps to the largest number; RISING, FALLING: V from key 128 on is larger, or
             smaller, by the factor v_apart */
static double v_apart;

/* A problem on host and device. Keys that do not exist are NaN on the device. */
typedef struct {
    Problem p;
    const int *lengths;
    double *q, *k, *v;
    HostTensors host;
    Tensors t;
    Buffer workspace[NEXT_TILE + 1];
} Example;

extern Planner fp8_overlapped_plan; /* that of the other variants and one number more, which is 0 */

static const int LENGTHS[BATCH] = {ROWS, 201};

static void *stored(const Problem *p, const double *values, size_t count) {
    uint16_t *host = host_alloc(count, sizeof *host);
    for (size_t i = 0; i < count; i++)
        dtype_store(p->dtype, host, i, values[i]);
    return host;
}

static const void *to_device(const Problem *p, const double *values, size_t count, const int *lengths) {
    uint16_t *host = stored(p, values, count);
    for (size_t i = 0; i < count; i++) {
        size_t row = i / p->head_dim;
        if (lengths && (int)(row % p->seqlen_k) >= lengths[row / p->seqlen_k / p->kv_heads])
            host[i] = 0xffff;
    }
    void *device = upload(host, count * sizeof *host, "input");
    free(host);
    return device;
}

static double *draw(const Problem *p, int tensor, Inputs inputs, double size) {
    size_t count = tensor ? key_elements(p) : query_elements(p);
    uint16_t *host = host_alloc(count, sizeof *host);
    double *values = host_alloc(count, sizeof *values);
    random_normal(p->dtype, host, count, 5, tensor, 0, 1);
    if (inputs == OUTLIERS && tensor < 2)
        random_outliers(p->dtype, host, count, 5, 4 + tensor, 0.01, 10);
    for (size_t i = 0; i < count; i++) {
        int row = (int)(i / p->head_dim % (tensor ? p->seqlen_k : p->seqlen_q)), d = (int)(i % p->head_dim);
        double value = dtype_to_double(p->dtype, host, i);
        if (inputs == ALIKE && tensor == 1)
            value += d % 3 ? 6 : -9;
        if (inputs == GROWING && tensor == 2)
            value *= row < BLOCK_K ? 0x1p-8 : 0x1p8;
        if (inputs == EQUAL_KEYS && tensor == 1)
            value = dtype_to_double(p->dtype, host, d);
        if ((inputs == RISING || inputs == FALLING) && tensor == 2)
            value *= (row < BLOCK_K) == (inputs == RISING) ? 1 / sqrt(v_apart) : sqrt(v_apart);
        if (inputs == TINY && tensor < 2)
            value *= 1e-23;
        if (inputs == TINIER)
            value *= 1e-33;
        dtype_store(p->dtype, host, i, value * size);
        values[i] = dtype_to_double(p->dtype, host, i);
    }
    free(host);
    return values;
}

/* settings: format, scaling, hadamard, smooth-k. `size` multiplies K and V, and divides Q, so that the scores stay. */
static Example make_example(Dtype dtype, int head_dim, int causal, const int settings[4], const int *lengths, Inputs inputs,
                            double size) {
    Example e = {.p = {.batch = BATCH,
                       .heads = HEADS,
                       .kv_heads = 1,
                       .seqlen_q = ROWS,
                       .seqlen_k = ROWS,
                       .head_dim = head_dim,
                       .dtype = dtype,
                       .causal = causal,
                       .scale = (float)(1 / sqrt(head_dim))},
                 .lengths = lengths};
    memcpy(e.p.settings, settings, 4 * sizeof *settings);
    e.q = draw(&e.p, 0, inputs, 1 / size), e.k = draw(&e.p, 1, inputs, size), e.v = draw(&e.p, 2, inputs, size);
    e.host = (HostTensors){stored(&e.p, e.q, query_elements(&e.p)), stored(&e.p, e.k, key_elements(&e.p)),
                           stored(&e.p, e.v, key_elements(&e.p)), NULL};
    e.t.q = to_device(&e.p, e.q, query_elements(&e.p), NULL);
    e.t.k = to_device(&e.p, e.k, key_elements(&e.p), lengths);
    e.t.v = to_device(&e.p, e.v, key_elements(&e.p), lengths);
    e.t.o = device_alloc(query_elements(&e.p) * 2, "O");
    e.t.lse = device_alloc(row_count(&e.p) * 4, "LSE");
    upload_options(&e.p, lengths, &e.t);
    fp8_overlapped_plan(&e.p, e.workspace);
    for (int i = 0; i <= NEXT_TILE; i++)
        e.workspace[i].pointer = device_alloc(e.workspace[i].bytes, e.workspace[i].purpose);
    device_write(e.workspace[NEXT_TILE].pointer, &(uint32_t){0}, sizeof(uint32_t));
    fp8_quantise(&e.p, &e.t, e.workspace);
    return e;
}

static void free_example(Example *e) {
    void *host[] = {e->q, e->k, e->v, e->host.q, e->host.k, e->host.v};
    const void *device[] = {e->t.q, e->t.k, e->t.v, e->t.o, e->t.lse, e->t.key_lengths};
    for (int i = 0; i < 6; i++)
        free(host[i]), device_free((void *)device[i]);
    for (int i = 0; i <= NEXT_TILE; i++)
        device_free(e->workspace[i].pointer);
}

/* ---- what the pre-pass leaves ---- */

static float *floats(const Example *e, int buffer) {
    float *copy = host_alloc(e->workspace[buffer].bytes, 1);
    device_read(copy, e->workspace[buffer].pointer, e->workspace[buffer].bytes);
    return copy;
}

/* row := row diag(sign) H / sqrt(D), from the definition of each. */
static void rotate(double *row, int columns) {
    double from[MAX_D];
    memcpy(from, row, columns * sizeof *row);
    for (int j = 0; j < columns; j++) {
        row[j] = 0;
        for (int i = 0; i < columns; i++)
            row[j] += (__builtin_parity(i & i >> 1) ? -1 : 1) * (__builtin_parity(i & j) ? -1 : 1) * from[i] / sqrt(columns);
    }
}

/* The mean of the keys of a head that exist; 0 where none does. */
static void mean_of(const Example *e, int matrix, double *mean) {
    int columns = e->p.head_dim, count = key_length(&e->p, e->lengths, matrix / e->p.kv_heads);
    for (int d = 0; d < columns; d++) {
        mean[d] = 0;
        for (int row = 0; row < count; row++)
            mean[d] += e->k[((size_t)matrix * e->p.seqlen_k + row) * columns + d] / count;
    }
}

/* How many scales of Q (0), K or V are not amax / largest of their group; 1 where amax is 0. `apart` tells whether two
 * scales of a head differ. */
static int wrong_scales(const Example *e, int tensor, int *apart) {
    const Problem *p = &e->p;
    const double *values = tensor == 0 ? e->q : tensor == 1 ? e->k : e->v;
    int block = tensor ? BLOCK_K : BLOCK_Q, seqlen = tensor ? p->seqlen_k : p->seqlen_q, wrong = 0;
    int heads = tensor ? p->kv_heads : p->heads, tiles = (seqlen + block - 1) / block;
    double largest = p->settings[FORMAT] == FORMAT_E4M3 ? 448 : 57344, amax[8], mean[MAX_D], x[MAX_D];
    float *scales = floats(e, Q_SCALES + tensor);
    for (int matrix = 0; matrix < p->batch * heads; matrix++) {
        int count = tensor ? key_length(p, e->lengths, matrix / heads) : seqlen;
        double head_amax = 0;
        memset(amax, 0, sizeof amax);
        mean_of(e, tensor == 1 ? matrix : 0, mean);
        for (int row = 0; row < count; row++) {
            for (int d = 0; d < p->head_dim; d++)
                x[d] = values[((size_t)matrix * seqlen + row) * p->head_dim + d] -
                       (tensor == 1 && p->settings[SMOOTH_K] ? mean[d] : 0);
            if (p->settings[HADAMARD] && tensor < 2)
                rotate(x, p->head_dim);
            for (int d = 0; d < p->head_dim; d++)
                amax[row / block] = fmax(amax[row / block], fabs(x[d]));
            head_amax = fmax(head_amax, amax[row / block]);
        }
        for (int tile = 0; tile < tiles; tile++) {
            double group = p->settings[SCALING] == SCALING_BLOCK ? amax[tile] : head_amax;
            double want = group > 0 ? group / largest : 1, got = scales[(size_t)matrix * tiles + tile];
            wrong += !(fabs(got - want) <= 1e-5 * want);
            *apart |= got != scales[(size_t)matrix * tiles];
        }
    }
    free(scales);
    return wrong;
}

/* With --smooth-k the mean, and scale q . mean for LSE, of the q that the scores are made of: the rounded one. Without, LSE is
 * not shifted. */
static int wrong_means(const Example *e) {
    const Problem *p = &e->p;
    float *means = floats(e, K_MEAN), *shifts = floats(e, LSE_SHIFT);
    double mean[MAX_D];
    int wrong = 0, smooth = p->settings[SMOOTH_K];
    float *q = host_alloc(query_elements(p), 4), *k = host_alloc(key_elements(p), 4), *v = host_alloc(key_elements(p), 4);
    fp8_mma_prepared_values(p, e->workspace, q, k, v);
    for (size_t row = 0; row < row_count(p); row++) {
        RowIndex i = row_index(p, row);
        double shift = 0, size = 0;
        if (row % (p->heads * p->seqlen_q) == 0)
            mean_of(e, i.batch * p->kv_heads, mean); /* one K/V head */
        for (int d = 0; d < p->head_dim; d++) {
            if (smooth && i.row == 0)
                wrong += !(fabs(means[i.batch * p->head_dim + d] - mean[d]) <= 1e-5 * (1 + fabs(mean[d])));
            shift += p->scale * q[row * p->head_dim + d] * mean[d];
            size += fabs(p->scale * q[row * p->head_dim + d] * mean[d]);
        }
        wrong += smooth ? !(fabs(shifts[row] - shift) <= 1e-5 * (size + 1)) : shifts[row] != 0;
    }
    free(means), free(shifts), free(q), free(k), free(v);
    return wrong;
}

static void test_workspace(void) {
    static const int all_lengths[][BATCH] = {{0}, {ROWS, 201}, {0, 129}};
    int wrong[4] = {0}, apart[2] = {0}, cases = 0;
    for (int choice = 0; choice < 16; choice++)
        for (int length = 0; length < 3; length++) {
            if ((choice + length) % 3 && !getenv("TEST_ALL"))
                continue;
            const int settings[] = {choice & 1, choice >> 1 & 1, choice >> 2 & 1, choice >> 3};
            Example e = make_example(DTYPE_FP16, length == 1 ? 128 : 64, 0, settings, length ? all_lengths[length] : NULL,
                                     choice & 1 ? ALIKE : OUTLIERS, 1);
            for (int tensor = 0; tensor < 3; tensor++)
                wrong[tensor] += wrong_scales(&e, tensor, &apart[settings[SCALING]]);
            wrong[3] += wrong_means(&e);
            cases++;
            free_example(&e);
        }
    for (int tensor = 0; tensor < 3; tensor++)
        ok(!wrong[tensor], "scales of %c are amax / largest in %d cases of options and key lengths", "QKV"[tensor],
           cases);
    ok(!wrong[3], "the mean of the keys that exist, and what it shifts LSE by");
    ok(apart[SCALING_BLOCK] && !apart[SCALING_TENSOR], "--scaling block: scales of a head differ; tensor: they do not");
}

/* ---- the error of O ---- */

/* Of each variant: the root of the mean square of the errors in rows [0, rows) of every head, over that of O. */
typedef double Errors[MAX_VARIANTS];
static int can_run[MAX_VARIANTS]; /* on this device */
#define EACH_VARIANT(i) (int i = 0; stage.variants[i].name; i++) if (can_run[i])

static void errors_of_example(Example *e, int rows, Errors errors) {
    uint16_t *o = host_alloc(query_elements(&e->p), sizeof *o);
    Samples exact = samples_compute(&e->p, e->lengths, &e->host, row_count(&e->p));
    for EACH_VARIANT (v) {
        double sum = 0, squares = 0;
        stage.variants[v].launch(&e->p, &e->t, e->workspace);
        device_read(o, e->t.o, query_elements(&e->p) * sizeof *o);
        for (size_t i = 0; i < query_elements(&e->p); i++) {
            double error = dtype_to_double(e->p.dtype, o, i) - exact.o[i];
            if ((int)(i / e->p.head_dim % e->p.seqlen_q) >= rows)
                continue;
            sum += error * error, squares += exact.o[i] * exact.o[i];
        }
        errors[v] = sqrt(sum / squares);
    }
    free(o), free_samples(&exact);
}
static void errors_of(Dtype dtype, const int settings[4], const int *lengths, Inputs inputs, int rows, double size, Errors errors) {
    Example e = make_example(dtype, 64, inputs == GROWING, settings, lengths, inputs, size);
    errors_of_example(&e, rows, errors);
    free_example(&e);
}

static void test_remedies(void) {
    static const struct {
        const char *name;
        Inputs inputs;
        int better[4], worse[4]; /* format, scaling, hadamard, smooth-k */
        double factor;           /* at most this much of the error is left */
        int rows;
    } remedies[] = {
        {"--hadamard against outliers", OUTLIERS, {0, 0, 1, 0}, {0, 0, 0, 0}, 0.8, ROWS},
        {"--smooth-k against a mean of K", ALIKE, {0, 0, 0, 1}, {0, 0, 0, 0}, 0.5, ROWS},
        {"--scaling block where tiles differ", GROWING, {0, 1, 0, 0}, {0, 0, 0, 0}, 0.8, BLOCK_K},
        {"e5m2 where a head has a wide range", GROWING, {1, 0, 0, 0}, {0, 0, 0, 0}, 0.8, BLOCK_K},
        {"e4m3 where it has not", NORMAL, {0, 0, 0, 0}, {1, 0, 0, 0}, 0.7, ROWS},
    };
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++)
        for (int with_lengths = 0; with_lengths < 2; with_lengths++) {
            const int *lengths = with_lengths ? LENGTHS : NULL;
            Errors with, without;
            errors_of(DTYPE_FP16, remedies[i].better, lengths, remedies[i].inputs, remedies[i].rows, 1, with);
            errors_of(DTYPE_FP16, remedies[i].worse, lengths, remedies[i].inputs, remedies[i].rows, 1, without);
            for EACH_VARIANT (v)
                ok(with[v] > 0 && with[v] < remedies[i].factor * without[v], "%s, %s%s: error %.3g, and %.3g without", stage.variants[v].name,
                   remedies[i].name, with_lengths ? ", key lengths" : "", with[v], without[v]);
        }
}

/* What a scale maps to the largest number must be there, and no NaN; and sizes at both ends of the input's dtype change
 * nothing but the scale: the error stays what it is for N(0,1). */
static void test_ends(void) {
    for (int format = FORMAT_E4M3; format <= FORMAT_E5M2; format++) {
        const int settings[4] = {format, 0, 0, 0}, largest = format == FORMAT_E4M3 ? 0x7e : 0x7b;
        Example e = make_example(DTYPE_FP16, 64, 0, settings, NULL, NORMAL, 8192); /* K and V up to 40000 */
        uint8_t *codes = host_alloc(e.workspace[VT8].bytes, 1);
        int found = 0, beyond = 0;
        device_read(codes, e.workspace[VT8].pointer, e.workspace[VT8].bytes);
        for (size_t i = 0; i < e.workspace[VT8].bytes; i++)
            found += (codes[i] & 0x7f) == largest, beyond += (codes[i] & 0x7f) > largest;
        ok(found >= BATCH && !beyond, "%s: the largest V becomes the largest number, none becomes infinity or NaN",
           format == FORMAT_E4M3 ? "e4m3" : "e5m2");
        free(codes);
        free_example(&e);

        Errors normal, scaled;
        errors_of(DTYPE_BF16, settings, NULL, NORMAL, ROWS, 1, normal);
        for (int exponent = -80; exponent <= 80; exponent += 160) { /* scales end at 2^-100 */
            errors_of(DTYPE_BF16, settings, NULL, NORMAL, ROWS, exp2(exponent), scaled);
            for EACH_VARIANT (v)
                ok(fabs(scaled[v] - normal[v]) <= 1e-3 * normal[v], "%s, %s: K and V times 2^%d, error %.5g, %.5g without",
                   stage.variants[v].name, format == FORMAT_E4M3 ? "e4m3" : "e5m2", exponent, scaled[v], normal[v]);
        }
    }
}

/* With a single key O is V, whatever its score, and with equal keys the mean of V. So it must be with scores beyond 2^24, where 8 - m
 * and 15 - m are rounded: P must not become larger than the format's largest number, and a tile in which no maximum moves must be
 * multiplied like the one before it. */
static void test_far(void) {
    static const int one[BATCH] = {1, 1};
    for (int kind = 0; kind < 4; kind++) {
        const int format = kind % 2 ? FORMAT_E5M2 : FORMAT_E4M3, settings[4] = {format, 0, 0, 0};
        Errors errors, least, most;
        for (int exponent = 0; exponent <= 30; exponent += 3) { /* scores are some 2^3 times the softmax scale */
            Example e = make_example(DTYPE_FP16, 64, 0, settings, kind < 2 ? one : LENGTHS, kind < 2 ? NORMAL : EQUAL_KEYS, 1);
            e.p.scale = (float)exp2(exponent);
            errors_of_example(&e, ROWS, errors);
            for EACH_VARIANT (v) {
                least[v] = exponent ? fmin(least[v], errors[v]) : errors[v];
                most[v] = exponent ? fmax(most[v], errors[v]) : errors[v];
            }
            free_example(&e);
        }
        for EACH_VARIANT (v)
            ok(most[v] <= 1.01 * least[v], "%s, %s: %s, scores up to 2^33: errors from %.5g to %.5g", stage.variants[v].name,
               format == FORMAT_E4M3 ? "e4m3" : "e5m2", kind < 2 ? "one key" : "equal keys", least[v], most[v]);
    }
}

/* The verdict about a variant on an example. */
static int is_right(const Variant *v, Example *e) {
    Comparison comparisons[PREPARED_COMPARISONS];
    uint16_t *o = host_alloc(query_elements(&e->p), sizeof *o);
    float *lse = host_alloc(row_count(&e->p), sizeof *lse);
    int good = 1;
    v->launch(&e->p, &e->t, e->workspace);
    device_read(o, e->t.o, query_elements(&e->p) * sizeof *o);
    device_read(lse, e->t.lse, row_count(&e->p) * sizeof *lse);
    compare_prepared(&e->p, v, e->lengths, &e->host, e->workspace, o, lse, samples_compute, row_count(&e->p), comparisons);
    for (int i = 0; i < PREPARED_COMPARISONS; i++) {
        good = good && comparisons[i].ok;
        if (!comparisons[i].ok)
            comparison_print(stderr, &comparisons[i]);
    }
    free(o), free(lse);
    return good;
}

/* Of the sixteen choices of four options half, in which every three of them meet in every way; with TEST_ALL=1 all. */
static int is_taken(int choice) { return !__builtin_parity((unsigned)choice) || getenv("TEST_ALL"); }

/* Blocks of V so far apart that O, divided by the scale of the small ones, would be infinite in fp32; and nearer, so that the bound still
 * tells what becomes of the small ones. Under the causal mask rows of entry 1 see none of the others, but their tile does. */
static void test_apart(void) {
    for (int choice = 0; choice < 16; choice++) {
        const int settings[4] = {choice & 1, SCALING_BLOCK, 0, 0}, causal = choice >> 1 & 1, exponent = choice >> 3 ? 130 : 46;
        const Inputs inputs = choice >> 2 & 1 ? FALLING : RISING;
        if (!is_taken(choice))
            continue;
        v_apart = exp2(exponent);
        Example e = make_example(DTYPE_BF16, 64, causal, settings, LENGTHS, inputs, 1);
        for EACH_VARIANT (v)
            ok(is_right(&stage.variants[v], &e), "%s, %s%s: V %s by 2^%d from block to block", stage.variants[v].name, settings[0] ? "e5m2" : "e4m3",
               causal ? ", causal" : "", inputs == FALLING ? "falls" : "rises", exponent);
        free_example(&e);
    }
}

/* Q and K so small that the product of their scales is 0 in fp32, with rows that are masked; and inputs of which a scale leaves
 * little or nothing. */
static void test_tiny(void) {
    for (int choice = 0; choice < 16; choice++) {
        const int settings[4] = {choice & 1, 0, 0, choice >> 1 & 1}, causal = choice >> 2 & 1;
        const Inputs inputs = choice >> 3 ? TINIER : TINY;
        if (!is_taken(choice))
            continue;
        Example e = make_example(DTYPE_BF16, 64, causal, settings, causal ? NULL : LENGTHS, inputs, 1);
        for EACH_VARIANT (v)
            ok(is_right(&stage.variants[v], &e), "%s, %s%s%s: Q and K times %s", stage.variants[v].name,
               settings[0] ? "e5m2" : "e4m3", settings[3] ? ", smooth-k" : "", causal ? ", causal" : ", key lengths", inputs == TINY ? "1e-23" : "1e-33, and V");
        free_example(&e);
    }
}

int main(void) {
    test_workspace();
    for (int i = 0; stage.variants[i].name; i++) {
        Problem p = {.head_dim = 64};
        const char *reason = variant_refuses(&stage.variants[i], &p);
        can_run[i] = !reason;
        if (reason)
            ok(1, "%s # SKIP %s", stage.variants[i].name, reason);
    }
    test_remedies();
    test_ends();
    test_far();
    test_tiny();
    test_apart();
    return tap_done();
}
