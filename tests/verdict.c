/* verdict.c - what the program says of variants that are wrong on purpose: FAIL, which tensor and which element, "ok": false,
 * exit code 1, and nothing of the right variant beside them.
 *
 * Each case is one run of harness_main on a table made here. Most variants of the forward table launch 00_naive and then make
 * their mistake in what it wrote; those of the backward and the preparing table compute on the host, in double precision.
 * Nothing here is a stage. The tables run on both devices.
 */
#define _GNU_SOURCE /* dup2, fileno */
#include "../common/device/device.h"
#include "../common/numeric.h"
#include "../common/judge/oracle.h"
#include "../common/host/memory.h"
#include "../common/stage.h"
#include "run_program.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) /* ends the program at the first byte past an allocation: a verdict of its own */
enum { MAY_WRITE_PAST = 0 };
#else
enum { MAY_WRITE_PAST = 1 };
#endif

/* 20 rows: the oracle looks at all of them. No tensor is a multiple of 256 bytes: each has a guard strip on the CPU device. */
enum { BATCH = 2, HEADS = 2, KV_HEADS = 1, ROWS = 5, KEYS = 7, D = 72 };
#define SHAPE "--batch 2 --heads 2 --kv-heads 1 --seqlen 5 --seqlen-k 7 --head-dim 72 --iters 1"

/* ---- one run of the program ---- */

/* The JSON row of a variant in a direction says this of `ok`. */
static int says_ok(const char *variant, const char *direction, const char *value) {
    char start[128], ok_field[32];
    snprintf(start, sizeof start, "\"variant\": \"%s\", \"direction\": \"%s\"", variant, direction);
    snprintf(ok_field, sizeof ok_field, "\"ok\": %s,", value);
    const char *row = strstr(run.out, start), *field = row ? strstr(row, ok_field) : NULL;
    return field && !memchr(row, '\n', (size_t)(field - row));
}

static int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static int occurrences(const char *text, const char *word) {
    int count = 0;
    for (; (text = strstr(text, word)); text++)
        count++;
    return count;
}

/* A test point about the last run; shows it if it is not so. */
static void expect(int good, const char *name, const char *detail) {
    if (!ok(good, "%s%s%s", name, *detail ? ": " : "", detail))
        diag("exit code %d\n%s%s", run.code, run.out, run.err);
}

/* ---- mistakes ---- */

/* What the variant named "wrong" does beyond the right thing. The numbers say where, in whatever way the mistake takes them. */
typedef struct {
    const char *name;
    void (*make)(const Problem *p, const Tensors *t, const Buffer *workspace);
    const char *says; /* the line about it, after the variant's name; NULL: none, it is no mistake */
    size_t at;
} Mistake;
static Mistake mistake;
static int launches; /* of the wrong variant in this run */

static double read_element(const void *device, Dtype dtype, size_t index) {
    char bytes[4];
    device_read(bytes, (const char *)device + index * dtype_bytes(dtype), dtype_bytes(dtype));
    return dtype_to_double(dtype, bytes, 0);
}
static void write_element(void *device, Dtype dtype, size_t index, double value) {
    char bytes[4];
    dtype_store(dtype, bytes, 0, value);
    device_write((char *)device + index * dtype_bytes(dtype), bytes, dtype_bytes(dtype));
}
static void add(void *device, Dtype dtype, size_t index, double value) {
    write_element(device, dtype, index, read_element(device, dtype, index) + value);
}
static void multiply(void *device, Dtype dtype, size_t count, double factor) {
    for (size_t i = 0; i < count; i++)
        write_element(device, dtype, i, read_element(device, dtype, i) * factor);
}
static void write_past(void *device, size_t bytes) { device_write((char *)device + bytes, "", 1); }

static void nothing(const Problem *p, const Tensors *t, const Buffer *w) { (void)p, (void)t, (void)w; }
#define MISTAKE(name, ...)                                                                                                  \
    static void name(const Problem *p, const Tensors *t, const Buffer *w) {                                                 \
        (void)p, (void)t, (void)w;                                                                                          \
        __VA_ARGS__;                                                                                                        \
    }
MISTAKE(o_off, add(t->o, p->dtype, mistake.at, 0.01))
MISTAKE(o_slightly_off, multiply((char *)t->o + mistake.at * dtype_bytes(p->dtype), p->dtype, 1, 1.001)) /* one rounding */
MISTAKE(o_nan, write_element(t->o, p->dtype, mistake.at, (double)NAN))
MISTAKE(o_infinite, write_element(t->o, p->dtype, mistake.at, INFINITY))
MISTAKE(o_factor, multiply(t->o, p->dtype, query_elements(p), 1.01))
MISTAKE(o_unwritten, device_fill((char *)t->o + mistake.at * dtype_bytes(p->dtype), 0xff, dtype_bytes(p->dtype)))
MISTAKE(lse_off, add(t->lse, DTYPE_FP32, mistake.at, 0.001))
MISTAKE(lse_off_by_half, multiply((float *)t->lse + mistake.at, DTYPE_FP32, 1, 1.5))
MISTAKE(lse_nan, write_element(t->lse, DTYPE_FP32, mistake.at, (double)NAN))
MISTAKE(lse_factor, multiply(t->lse, DTYPE_FP32, row_count(p), 1.0001))
MISTAKE(lse_base_2, multiply(t->lse, DTYPE_FP32, row_count(p), 1.442695))
MISTAKE(past_o, write_past(t->o, query_elements(p) * dtype_bytes(p->dtype)))
MISTAKE(past_lse, write_past(t->lse, row_count(p) * sizeof(float)))
MISTAKE(past_k, write_past((void *)t->k, key_elements(p) * dtype_bytes(p->dtype)))
MISTAKE(past_workspace, write_past(w[mistake.at].pointer, w[mistake.at].bytes))

/* ---- the forward table ---- */

static int naive_workspace(const Problem *p, Buffer *w) { return naive_variant.plan(p, w); }
static void right(const Problem *p, const Tensors *t, const Buffer *w) { naive_variant.launch(p, t, w); }
static void wrong(const Problem *p, const Tensors *t, const Buffer *w) {
    right(p, t, w);
    mistake.make(p, t, w);
}
static void writes_nothing(const Problem *p, const Tensors *t, const Buffer *w) { (void)p, (void)t, (void)w; }
static void scale_off(const Problem *p, const Tensors *t, const Buffer *w) {
    Problem other = *p;
    other.scale *= 1.001f;
    right(&other, t, w);
}
static void ignores_lengths(const Problem *p, const Tensors *t, const Buffer *w) {
    Tensors other = *t;
    other.key_lengths = NULL;
    right(p, &other, w);
}
static void wrong_in_bf16(const Problem *p, const Tensors *t, const Buffer *w) {
    (p->dtype == DTYPE_BF16 ? wrong : right)(p, t, w);
}
static const char *refuses(const Problem *p) {
    (void)p;
    return "takes nothing";
}

enum { ALL = FP16 | BF16 | FP32 };
#define FORWARD_VARIANT(n, l)                                                                                               \
    { .name = n, .idea = "", .launch = l, .plan = naive_workspace, .dtypes = ALL }
static const Variant wrong_naive = FORWARD_VARIANT("00_naive", wrong);
static const Stage
    wrong_first = {.name = "v", .idea = "", .variants = {FORWARD_VARIANT("wrong", wrong), FORWARD_VARIANT("right", right)}},
    wrong_last = {.name = "v", .idea = "", .variants = {FORWARD_VARIANT("right", right), FORWARD_VARIANT("wrong", wrong)}},
    both_wrong = {.name = "v", .idea = "", .variants = {FORWARD_VARIANT("wrong", wrong), FORWARD_VARIANT("bad", wrong)}},
    unwritten = {.name = "v",
                 .idea = "",
                 .variants = {FORWARD_VARIANT("wrong", writes_nothing), FORWARD_VARIANT("right", right)}},
    wrong_scale = {.name = "v",
                   .idea = "",
                   .variants = {FORWARD_VARIANT("wrong", scale_off), FORWARD_VARIANT("right", right)}},
    wrong_lengths = {.name = "v",
                     .idea = "",
                     .variants = {FORWARD_VARIANT("wrong", ignores_lengths), FORWARD_VARIANT("right", right)}},
    wrong_reference = {.name = "v", .idea = "", .variants = {FORWARD_VARIANT("right", right)}, .reference = &wrong_naive},
    reference_alone = {.name = "v", .idea = "", .reference = &wrong_naive},
    one_refuses = {.name = "v",
                   .idea = "",
                   .variants = {{.name = "wrong", .idea = "", .launch = wrong, .dtypes = ALL, .refuses = refuses},
                                FORWARD_VARIANT("right", right)}},
    in_bf16 = {.name = "v",
               .idea = "",
               .variants =
                   {{.name = "wrong", .idea = "", .launch = wrong_in_bf16, .plan = naive_workspace, .dtypes = FP16 | BF16}}},
    all_refuse = {.name = "v",
                  .idea = "",
                  .variants = {{.name = "wrong", .idea = "", .launch = wrong, .dtypes = ALL, .refuses = refuses}}};

/* One mistake, whose line names it, beside a right variant: in JSON. */
static void expect_failure(const Stage *stage, const char *options, const char *direction, const char *name,
                           const char *says) {
    char line[256];
    snprintf(line, sizeof line, "v/wrong: %s", says);
    launches = 0;
    run_program(stage, options);
    expect(run.code == 1 && says_ok("v/wrong", direction, "false") && says_ok("v/right", direction, "true") &&
               strstr(run.err, line) == run.err,
           name, says);
}

static void expect_forward(Mistake m) {
    mistake = m;
    expect_failure(&wrong_first, SHAPE " --json", "forward", m.name, m.says);
}

static size_t element(int batch, int head, int row, int column) {
    return (((size_t)batch * HEADS + head) * ROWS + row) * D + column;
}

static void test_forward(void) {
    mistake = (Mistake){"none", nothing, NULL, 0};
    run_program(&wrong_first, SHAPE " --json");
    expect(run.code == 0 && says_ok("v/wrong", "forward", "true") && says_ok("00_naive", "forward", "true") && !*run.err,
           "no mistake: nothing fails", "");
    run_program(&wrong_first, SHAPE);
    expect(run.code == 0 && ends_with(run.out, "\nPASS  2 variants agree with 00_naive\n"), "and the verdict is PASS", "");

    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS; h++)
            for (int last = 0; last < 2; last++) {
                char says[128];
                int row = last * (ROWS - 1), column = last * (D - 1);
                snprintf(says, sizeof says, "O[batch %d, head %d, row %d, column %d] = ", b, h, row, column);
                expect_forward((Mistake){"O, one element", o_off, says, element(b, h, row, column)});
                expect_forward((Mistake){"O, one element unwritten", o_unwritten, says, element(b, h, row, column)});
                snprintf(says, sizeof says, "LSE[batch %d, head %d, row %d] = ", b, h, row);
                expect_forward((Mistake){"LSE, one element", lse_off, says, element(b, h, row, 0) / D});
            }
    const Mistake mistakes[] = {
        {"O, NaN", o_nan, "O[batch 1, head 0, row 2, column 7] = nan, ", element(1, 0, 2, 7)},
        {"O, infinity", o_infinite, "O[batch 1, head 0, row 2, column 7] = inf, ", element(1, 0, 2, 7)},
        {"O, all by a factor", o_factor, "O[", 0},
        {"LSE, NaN", lse_nan, "LSE[batch 1, head 1, row 4] = nan, ", BATCH * HEADS * ROWS - 1},
        {"LSE, by a factor", lse_factor, "LSE[", 0},
        {"LSE in base 2", lse_base_2, "LSE[", 0},
        {"past the end", past_o, "wrote outside O\n", 0},
        {"past the end", past_lse, "wrote outside LSE\n", 0},
        {"past the end", past_k, "wrote outside K\n", 0},
        {"past the end", past_workspace, "wrote outside S\n", 0},
        {"past the end", past_workspace, "wrote outside P\n", 1},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        if (MAY_WRITE_PAST || strncmp(mistakes[i].says, "wrote", 5))
            expect_forward(mistakes[i]);
    expect_failure(&unwritten, SHAPE " --json", "forward", "nothing written", "O[batch 0, head 0, row 0, column 0] = nan, ");
    expect(strstr(run.err, "v/wrong: LSE[batch 0, head 0, row 0] = nan, ") != NULL, "nothing written", "LSE is named, too");
    expect_failure(&wrong_scale, SHAPE " --json", "forward", "scale by a thousandth", "LSE[");
    expect_failure(&wrong_lengths, SHAPE " --lengths 7,3 --json", "forward", "key lengths ignored", "O[batch 1, ");

    /* the shape of the CPU's defaults, where scores and bounds are larger */
    const char *large = "--batch 1 --heads 2 --seqlen 256 --head-dim 64 --iters 1 --json";
    expect_failure(&wrong_scale, large, "forward", "256 x 256: scale by a thousandth", "O[");
    mistake = (Mistake){"", lse_factor, NULL, 0};
    expect_failure(&wrong_first, large, "forward", "256 x 256: LSE by a factor of 1.0001", "LSE[");
    mistake = (Mistake){"", o_nan, NULL, 0};
    expect_failure(&wrong_first, SHAPE " --dtype fp32 --json", "forward", "NaN in fp32", "O[");
}

/* Whose mistake it is, and what the last line and the exit code make of it. */
static void test_verdict(void) {
    const struct {
        const Stage *stage;
        void (*make)(const Problem *, const Tensors *, const Buffer *);
        const char *options, *row, *verdict;
        int code;
    } cases[] = {
        {&wrong_first, o_nan, SHAPE, "v/wrong", "FAIL  1 of 2 variants disagrees with 00_naive\n", 1},
        {&wrong_last, o_nan, SHAPE, "v/wrong", "FAIL  1 of 2 variants disagrees with 00_naive\n", 1},
        {&both_wrong, o_nan, SHAPE, "v/bad", "FAIL  2 of 2 variants disagree with 00_naive\n", 1},
        {&wrong_last, o_nan, SHAPE " --variant right", "v/right", "PASS  1 variant agrees with 00_naive\n", 0},
        {&wrong_last, o_nan, SHAPE " --variant wrong", "v/wrong", "FAIL  the variant disagrees with 00_naive\n", 1},
        {&wrong_last, o_nan, SHAPE " --variant 00_naive", "00_naive",
         "PASS  00_naive agrees with the fp64 oracle on 20 rows\n", 0},
        {&wrong_last, o_nan, SHAPE " --no-validate", "v/wrong", "not validated\n", 0},
        {&wrong_last, o_nan, SHAPE " --scale 1e5", "v/wrong", "FAIL  1 of 2 variants disagrees with 00_naive\n", 1},
        {&wrong_last, nothing, SHAPE " --scale 1e5", "v/wrong", "PASS  2 variants agree with 00_naive; not checked: O\n", 0},
        {&wrong_last, lse_off_by_half, SHAPE " --scale 1e5", "v/wrong", "FAIL  1 of 2 variants disagrees with 00_naive\n", 1},
        {&wrong_reference, o_nan, SHAPE, "00_naive", "FAIL  00_naive disagrees with the fp64 oracle on 20 rows\n", 1},
        {&wrong_reference, o_off, SHAPE, "00_naive", "FAIL  00_naive disagrees with the fp64 oracle on 20 rows\n", 1},
        {&wrong_reference, lse_off, SHAPE, "00_naive", "FAIL  00_naive disagrees with the fp64 oracle on 20 rows\n", 1},
        {&wrong_reference, nothing, SHAPE, "00_naive", "PASS  1 variant agrees with 00_naive\n", 0},
        {&reference_alone, lse_nan, SHAPE, "00_naive", "FAIL  00_naive disagrees with the fp64 oracle on 20 rows\n", 1},
        {&reference_alone, nothing, SHAPE, "00_naive", "PASS  00_naive agrees with the fp64 oracle on 20 rows\n", 0},
        {&one_refuses, nothing, SHAPE, "v/right", "PASS  1 variant agrees with 00_naive\n", 0},
        {&all_refuse, nothing, SHAPE, "00_naive", "NOT RUN  no variant of v can run this problem here\n", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char row[80];
        mistake = (Mistake){"", cases[i].make, NULL, element(1, 1, 4, D - 1)};
        if (cases[i].make == lse_off || cases[i].make == lse_off_by_half || cases[i].make == lse_nan)
            mistake.at /= D;
        run_program(cases[i].stage, cases[i].options);
        snprintf(row, sizeof row, "\n%s ", cases[i].row);
        expect(run.code == cases[i].code && strstr(run.out, row) && ends_with(run.out, cases[i].verdict), cases[i].row,
               cases[i].verdict);
        run_program(cases[i].stage, strcat(strcpy((char[512]){""}, cases[i].options), " --json"));
        const char *value = cases[i].code == 1                                         ? "false"
                            : cases[i].code == 0 && !strstr(cases[i].options, "--no-") ? "true"
                                                                                       : "null";
        if (cases[i].stage != &all_refuse)
            expect(run.code == cases[i].code && says_ok(cases[i].row, "forward", value), "in JSON", value);
    }

    mistake = (Mistake){"", lse_nan, NULL, 3};
    run_program(&wrong_last, SHAPE);
    expect(strstr(run.out, " nan / ") != NULL, "the row shows the comparison that failed, not the first", "");
    mistake = (Mistake){"", o_slightly_off, NULL, 3};
    run_program(&wrong_last, SHAPE " --json");
    expect(run.code == 0 && occurrences(run.out, "\"worst_error\": 0,") == 1, "if none did, the first", "");
    if (MAY_WRITE_PAST) {
        mistake = (Mistake){"", past_o, NULL, 0};
        run_program(&wrong_last, SHAPE " --no-validate");
        expect(ends_with(run.out, "\nFAIL  1 of 2 variants wrote where nothing of theirs is\n"), "not validated", "");
        run_program(&wrong_last, SHAPE);
        expect(ends_with(run.out, "\nFAIL  1 of 2 variants wrote where nothing of theirs is\n"), "right, but outside, too", "");
        run_program(&wrong_reference, SHAPE);
        expect(ends_with(run.out, "\nFAIL  00_naive wrote where nothing of its own is\n"), "the reference", "");
        run_program(&wrong_last, SHAPE " --no-validate --json");
        expect(run.code == 1 && says_ok("v/wrong", "forward", "false") && says_ok("v/right", "forward", "null"),
               "what was written past the end is seen without validation, too", "");
    }
    run_program(&one_refuses, SHAPE " --json");
    expect(says_ok("v/wrong", "forward", "null") && strstr(run.out, "\"note\": \"not run: takes nothing\""),
           "what cannot run is neither right nor wrong", "");
}

/* What several problems come to: one of them wrong is worse than one that could not run. */
static void test_several(void) {
    static const struct {
        const char *options, *last;
        int code;
    } cases[] = {
        {" --dtype fp16 --mask full,causal", "\n2 problems: 2 good, 0 bad, 0 not run or not checked\n", 0},
        {" --dtype fp16,fp32", "\n2 problems: 1 good, 0 bad, 1 not run or not checked\n", 2},
        {" --dtype fp16,bf16", "\n2 problems: 1 good, 1 bad, 0 not run or not checked\n", 1},
        {" --dtype fp32,bf16,fp16", "\n3 problems: 1 good, 1 bad, 1 not run or not checked\n", 1},
        {" --dtype bf16,fp32", "\n2 problems: 0 good, 1 bad, 1 not run or not checked\n", 1},
    };
    mistake = (Mistake){"", o_nan, NULL, 3};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char options[256] = SHAPE;
        run_program(&in_bf16, strcat(options, cases[i].options));
        expect(run.code == cases[i].code && ends_with(run.out, cases[i].last), "several problems:", cases[i].options);
        run_program(&in_bf16, strcat(options, " --csv"));
        expect(run.code == cases[i].code && occurrences(run.out, "stage,variant,") == 1, "in CSV, titles once", "");
    }
}

/* ---- the backward table ---- */

static void *read_tensor(const void *device, size_t count, size_t size) {
    void *host = host_alloc(count, size);
    device_read(host, device, count * size);
    return host;
}
static double *read_doubles(const Problem *p, const void *device, size_t count) {
    void *host = read_tensor(device, count, dtype_bytes(p->dtype));
    double *values = host_alloc(count, sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = dtype_to_double(p->dtype, host, i);
    free(host);
    return values;
}
static void write_doubles(Dtype dtype, void *device, const double *values, size_t count) {
    void *host = host_alloc(count, dtype_bytes(dtype));
    for (size_t i = 0; i < count; i++)
        dtype_store(dtype, host, i, values[i]);
    device_write(device, host, count * dtype_bytes(dtype));
    free(host);
}

/* The gradients from O and LSE as they are, all keys visible: the equations of oracle.c, in its double precision. */
static void gradients(const Problem *p, const Tensors *t, const Buffer *none) {
    (void)none;
    size_t queries = query_elements(p), keys = key_elements(p);
    double *q = read_doubles(p, t->q, queries), *k = read_doubles(p, t->k, keys), *v = read_doubles(p, t->v, keys);
    double *o = read_doubles(p, t->o, queries), *d_o = read_doubles(p, t->d_o, queries);
    float *lse = read_tensor(t->lse, row_count(p), sizeof *lse);
    double *dq = host_alloc(queries, sizeof *dq), *dk = host_alloc(keys, sizeof *dk), *dv = host_alloc(keys, sizeof *dv);
    for (size_t row = 0; row < row_count(p); row++)
        for (int j = 0; j < p->seqlen_k; j++) {
            size_t i = row * D, key = key_head_offset(p, (int)(row / ROWS / HEADS), 0) + (size_t)j * D;
            double s = 0, dp = 0, delta = 0;
            for (int d = 0; d < D; d++)
                s += q[i + d] * k[key + d], dp += d_o[i + d] * v[key + d], delta += d_o[i + d] * o[i + d];
            double p_ij = exp(p->scale * s - lse[row]), ds = p->scale * p_ij * (dp - delta);
            for (int d = 0; d < D; d++)
                dq[i + d] += ds * k[key + d], dk[key + d] += ds * q[i + d], dv[key + d] += p_ij * d_o[i + d];
        }
    write_doubles(p->dtype, t->dq, dq, queries);
    write_doubles(p->dtype, t->dk, dk, keys);
    write_doubles(p->dtype, t->dv, dv, keys);
    free(q), free(k), free(v), free(o), free(d_o), free(lse), free(dq), free(dk), free(dv);
}
static void wrong_gradients(const Problem *p, const Tensors *t, const Buffer *none) {
    gradients(p, t, none);
    mistake.make(p, t, none);
    launches++;
}

MISTAKE(dq_off, add(t->dq, p->dtype, mistake.at, 0.01))
MISTAKE(dk_off, add(t->dk, p->dtype, mistake.at, 0.01))
MISTAKE(dv_off, add(t->dv, p->dtype, mistake.at, 0.02))
MISTAKE(dq_nan, write_element(t->dq, p->dtype, mistake.at, (double)NAN))
MISTAKE(dk_nan, write_element(t->dk, p->dtype, mistake.at, (double)NAN))
MISTAKE(dv_nan, write_element(t->dv, p->dtype, mistake.at, (double)NAN))
MISTAKE(dq_factor, multiply(t->dq, p->dtype, query_elements(p), 1.02))
MISTAKE(dk_factor, multiply(t->dk, p->dtype, key_elements(p), 1.02))
MISTAKE(dv_factor, multiply(t->dv, p->dtype, key_elements(p), 1.02))
MISTAKE(dq_unwritten, device_fill(t->dq, 0xff, query_elements(p) * dtype_bytes(p->dtype)))
MISTAKE(dk_unwritten, device_fill(t->dk, 0xff, key_elements(p) * dtype_bytes(p->dtype)))
MISTAKE(dv_unwritten, device_fill(t->dv, 0xff, key_elements(p) * dtype_bytes(p->dtype)))
MISTAKE(past_dq, write_past(t->dq, query_elements(p) * dtype_bytes(p->dtype)))
MISTAKE(past_dk, write_past(t->dk, key_elements(p) * dtype_bytes(p->dtype)))
MISTAKE(past_dv, write_past(t->dv, key_elements(p) * dtype_bytes(p->dtype)))
/* Another run, other bits: a thousandth, within what rounding allows. From the second run, from the last of four. */
MISTAKE(dq_differs, add(t->dq, p->dtype, mistake.at, launches ? 1e-3 * read_element(t->dq, p->dtype, mistake.at) : 0))
MISTAKE(all_of_dq_differ, multiply(t->dq, p->dtype, query_elements(p), launches ? 1.003 : 1))
MISTAKE(dk_differs, add(t->dk, p->dtype, mistake.at, launches ? 1e-3 * read_element(t->dk, p->dtype, mistake.at) : 0))
MISTAKE(dv_differs, add(t->dv, p->dtype, mistake.at, launches ? 1e-3 * read_element(t->dv, p->dtype, mistake.at) : 0))

#define BACKWARD_VARIANT(n, l)                                                                                              \
    { .name = n, .idea = "", .launch = l, .dtypes = ALL, .unordered = 1 }
static const Variant forward_variant = FORWARD_VARIANT("forward", right), /* with its workspace */
    wrong_forward_variant = FORWARD_VARIANT("forward", wrong), right_gradients = BACKWARD_VARIANT("00_naive", gradients),
                     wrong_reference_gradients = BACKWARD_VARIANT("00_naive", wrong_gradients);
#define BACKWARD_STAGE(wrong_variant, f, r)                                                                                 \
    {                                                                                                                       \
        .name = "v", .idea = "", .kind = BACKWARD, .forward = &f, .reference = &r, .variants = {                                              \
            wrong_variant,                                                                                                  \
            BACKWARD_VARIANT("right", gradients)                                                                            \
        }                                                                                                                   \
    }
static const Stage backward = BACKWARD_STAGE(BACKWARD_VARIANT("wrong", wrong_gradients), forward_variant, right_gradients),
                   backward_same_bits =
                       {.name = "v",
                        .idea = "",
                        .kind = BACKWARD,
                        .forward = &forward_variant,
                        .reference = &right_gradients,
                        .variants = {{.name = "wrong", .idea = "", .launch = wrong_gradients, .dtypes = ALL},
                                     {.name = "right", .idea = "", .launch = gradients, .dtypes = ALL}}},
                   wrong_forward =
                       BACKWARD_STAGE(BACKWARD_VARIANT("also right", gradients), wrong_forward_variant, right_gradients),
                   wrong_backward_reference =
                       BACKWARD_STAGE(BACKWARD_VARIANT("also right", gradients), forward_variant, wrong_reference_gradients);

/* Elements are counted once, in however many runs they differ. */
static void test_repeats(void) {
    mistake = (Mistake){"", all_of_dq_differ, NULL, 0};
    launches = 0;
    run_program(&backward_same_bits, SHAPE);
    expect(run.code == 1 && strstr(run.out, " = ") && strstr(run.out, " (1440 elements out of bounds)\n") &&
               occurrences(run.out, "elements out of bounds") == 1,
           "all of dQ differ in each of three more runs", "1440 elements");
}

/* With one key P is 1 whatever Q and K are, and dQ and dK are 0: no kernel is wrong there for being off by its own rounding, and no
 * kernel right for writing 0. */
static void test_one_key(void) {
    static const char *one = "--batch 2 --heads 2 --kv-heads 1 --seqlen 5 --seqlen-k 1 --head-dim 72 --iters 1";
    char json[200];
    snprintf(json, sizeof json, "%s --json", one);
    mistake = (Mistake){"", nothing, NULL, 0};
    run_program(&backward, one);
    expect(run.code == 0 && ends_with(run.out, "\nPASS  2 variants agree with 00_naive; not checked: dQ, dK\n") &&
               strstr(run.out, "gradients  v/wrong: dQ not checked, dK not checked, dV ") &&
               strstr(run.out, "\nv/wrong: not checked: rounding alone may change dQ by ") &&
               strstr(run.out, "at most 0; dK by "),
           "one key: dQ and dK are not checked, dV decides", "");
    run_program(&backward, strcat(strcpy((char[200]){""}, one), " --variant 00_naive"));
    expect(run.code == 0 && strstr(run.out, "on 20 rows; not checked: dQ, dK\n"), "00_naive alone", "");
    run_program(&backward, json);
    expect(run.code == 0 && says_ok("v/wrong", "backward", "true") && occurrences(run.out, "\"note\": \"not checked: ") == 3,
           "in JSON", "");
    mistake = (Mistake){"", dv_factor, NULL, 0};
    run_program(&backward, json);
    expect(run.code == 1 && says_ok("v/wrong", "backward", "false"), "one key: a wrong dV", "");
    mistake = (Mistake){"", dk_off, NULL, 0};
    run_program(&backward, json);
    expect(run.code == 1 && says_ok("v/wrong", "backward", "false"), "one key: dK far from 0", "");
    mistake = (Mistake){"", dq_nan, NULL, 0};
    run_program(&backward, json);
    expect(run.code == 1 && says_ok("v/wrong", "backward", "false"), "one key: NaN in dQ", "");
}

static void test_backward(void) {
    const size_t last_query = BATCH * HEADS * ROWS * D - 1, last_key = BATCH * KV_HEADS * KEYS * D - 1;
    const Mistake mistakes[] = {
        {"dQ, one element", dq_off, "dQ[batch 0, head 0, row 0, column 0] = ", 0},
        {"dQ, one element", dq_off, "dQ[batch 1, head 1, row 4, column 71] = ", last_query},
        {"dK, one element", dk_off, "dK[batch 0, head 0, row 0, column 0] = ", 0},
        {"dK, one element", dk_off, "dK[batch 1, head 0, row 6, column 71] = ", last_key},
        {"dV, one element", dv_off, "dV[batch 0, head 0, row 0, column 0] = ", 0},
        {"dV, one element", dv_off, "dV[batch 1, head 0, row 6, column 71] = ", last_key},
        {"dQ, NaN", dq_nan, "dQ[batch 1, head 1, row 4, column 71] = nan, ", last_query},
        {"dK, NaN", dk_nan, "dK[batch 1, head 0, row 6, column 71] = nan, ", last_key},
        {"dV, NaN", dv_nan, "dV[batch 1, head 0, row 6, column 71] = nan, ", last_key},
        {"dQ, by a factor", dq_factor, "dQ[", 0},
        {"dK, by a factor", dk_factor, "dK[", 0},
        {"dV, by a factor", dv_factor, "dV[", 0},
        {"dQ unwritten", dq_unwritten, "dQ[batch 0, head 0, row 0, column 0] = nan, ", 0},
        {"dK unwritten", dk_unwritten, "dK[batch 0, head 0, row 0, column 0] = nan, ", 0},
        {"dV unwritten", dv_unwritten, "dV[batch 0, head 0, row 0, column 0] = nan, ", 0},
        {"past the end", past_dq, "wrote outside dQ\n", 0},
        {"past the end", past_dk, "wrote outside dK\n", 0},
        {"past the end", past_dv, "wrote outside dV\n", 0},
    };
    mistake = (Mistake){"", nothing, NULL, 0};
    run_program(&backward, SHAPE " --json");
    expect(run.code == 0 && says_ok("v/wrong", "backward", "true") && says_ok("00_naive", "backward", "true") &&
               says_ok("forward", "forward", "true") && !*run.err,
           "backward, no mistake: nothing fails", "");
    /* S and P of 20 rows and 7 keys are 840 bytes; the gradients have no workspace */
    expect(occurrences(run.out, "\"workspace_bytes\": 840, ") == 3 && occurrences(run.out, "\"tensor_bytes\": 19664, ") == 5,
           "the forward pass's workspace counts in its row, and in both", "");
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        if (MAY_WRITE_PAST || strncmp(mistakes[i].says, "wrote", 5)) {
            mistake = mistakes[i];
            expect_failure(&backward, SHAPE " --json", "backward", mistake.name, mistake.says);
            expect(!strchr(run.err, '[') || strchr(run.err, '[') == strrchr(run.err, '['), mistake.name,
                   "and nothing else is bad");
            expect(!strstr(run.err, "dS"), mistake.name, "nor is dS blamed");
        }

    const Mistake differ[] = {{"", dq_differs, "dQ[batch 1, head 1, row 4, column 71] = ", last_query},
                              {"", dk_differs, "dK[batch 1, head 0, row 6, column 71] = ", last_key},
                              {"", dv_differs, "dV[batch 1, head 0, row 6, column 71] = ", last_key}};
    for (int i = 0; i < 3; i++) {
        mistake = differ[i];
        expect_failure(&backward_same_bits, SHAPE " --json", "backward", "other bits in every run", mistake.says);
        launches = 0;
        run_program(&backward, SHAPE);
        expect(run.code == 0 && strstr(run.out, "; 4 runs differ by up to ") && strstr(run.out, "; 4 runs are bit-equal"),
               "where equal bits are not claimed that is only told", "");
    }

    test_repeats();
    test_one_key();

    mistake = (Mistake){"", o_nan, NULL, 5};
    run_program(&wrong_forward, SHAPE);
    expect(run.code == 1 &&
               ends_with(run.out, "\nFAIL  the forward pass, forward, disagrees with the fp64 oracle on 20 rows\n"),
           "the forward pass is wrong", "");
    mistake = (Mistake){"", lse_off, NULL, 5};
    run_program(&wrong_forward, SHAPE " --json");
    expect(run.code == 1 && says_ok("forward", "forward", "false") && says_ok("v/right", "backward", "true"), "in JSON", "");
    for (int i = 0; i < 15; i++) {
        mistake = mistakes[i];
        run_program(&wrong_backward_reference, SHAPE " --json");
        char line[256];
        snprintf(line, sizeof line, "00_naive: %s", mistake.says);
        expect(run.code == 1 && says_ok("00_naive", "backward", "false") && strstr(run.err, line) == run.err,
               "00_naive, held against fp64", mistake.says);
    }
    run_program(&wrong_backward_reference, SHAPE);
    expect(run.code == 1 && ends_with(run.out, "\nFAIL  00_naive disagrees with the fp64 oracle on 20 rows\n"),
           "the verdict", "");
}

/* ---- the preparing table: Q, K and V rounded to bf16, attention of those in double precision ---- */

enum { PREPARED_Q, PREPARED_K, PREPARED_V };
static int prepare_plan(const Problem *p, Buffer *w) {
    const char *names[] = {"Q as bf16", "K as bf16", "V as bf16"};
    for (int i = 0; i < 3; i++)
        w[i] = (Buffer){.purpose = names[i], .bytes = 2 * (i ? key_elements(p) : query_elements(p))};
    return 3;
}
static void prepare(const Problem *p, const Tensors *t, const Buffer *w) {
    const void *inputs[] = {t->q, t->k, t->v};
    for (int i = 0; i < 3; i++) {
        double *values = read_doubles(p, inputs[i], w[i].bytes / 2);
        write_doubles(DTYPE_BF16, w[i].pointer, values, w[i].bytes / 2);
        free(values);
    }
}
static void wrong_prepare(const Problem *p, const Tensors *t, const Buffer *w) {
    prepare(p, t, w);
    mistake.make(p, t, w);
}
static PreparedRounding prepared_values(const Problem *p, const Buffer *w, float *q, float *k, float *v) {
    float *to[] = {q, k, v};
    (void)p;
    for (int i = 0; i < 3; i++) {
        uint16_t *codes = read_tensor(w[i].pointer, w[i].bytes / 2, 2);
        for (size_t j = 0; j < w[i].bytes / 2; j++)
            to[i][j] = bf16_to_float(codes[j]);
        free(codes);
    }
    return (PreparedRounding){.input_roundoff = 0x1p-8, .sum_roundoff = 0x1p-24};
}
static void attend(const Problem *p, const Tensors *t, const Buffer *w) {
    Problem bf16 = *p;
    bf16.dtype = DTYPE_BF16;
    HostTensors inputs = {read_tensor(w[0].pointer, query_elements(p), 2), read_tensor(w[1].pointer, key_elements(p), 2),
                          read_tensor(w[2].pointer, key_elements(p), 2), NULL};
    int *lengths = t->key_lengths ? read_tensor(t->key_lengths, (size_t)p->batch, sizeof *lengths) : NULL;
    Samples exact = samples_compute(&bf16, lengths, &inputs, row_count(p));
    write_doubles(p->dtype, t->o, exact.o, query_elements(p));
    write_doubles(DTYPE_FP32, t->lse, exact.lse, row_count(p));
    free(inputs.q), free(inputs.k), free(inputs.v), free(lengths), free_samples(&exact);
}
static void wrong_attend(const Problem *p, const Tensors *t, const Buffer *w) {
    attend(p, t, w);
    mistake.make(p, t, w);
}

MISTAKE(q_off, add(w[PREPARED_Q].pointer, DTYPE_BF16, mistake.at, 0.25))
MISTAKE(k_off, add(w[PREPARED_K].pointer, DTYPE_BF16, mistake.at, 0.25))
MISTAKE(v_off, add(w[PREPARED_V].pointer, DTYPE_BF16, mistake.at, 0.25))
MISTAKE(v_factor, multiply(w[PREPARED_V].pointer, DTYPE_BF16, key_elements(p), 1.0625))
MISTAKE(v_nan, write_element(w[PREPARED_V].pointer, DTYPE_BF16, mistake.at, (double)NAN))

#define PREPARING(n, l, pre)                                                                                                \
    {                                                                                                                       \
        .name = n, .idea = "", .launch = l, .plan = prepare_plan, .dtypes = ALL, .preparation =                  \
            &(Preparation) {                                                                                                \
            .name = "round", .launch = pre, .values = prepared_values                                                       \
        }                                                                                                                   \
    }
static const Stage badly_prepared = {.name = "v",
                                     .idea = "",
                                     .variants = {PREPARING("wrong", attend, wrong_prepare),
                                                  PREPARING("right", attend, prepare)}},
                   well_prepared = {
                       .name = "v",
                       .idea = "",
                       .variants = {PREPARING("wrong", wrong_attend, prepare), PREPARING("right", attend, prepare)}};

static void test_prepared(void) {
    const size_t last_query = BATCH * HEADS * ROWS * D - 1, last_key = BATCH * KV_HEADS * KEYS * D - 1;
    const Mistake prepared[] = {
        {"prepared Q, one element", q_off, "prepared Q[batch 0, head 0, row 0, column 0] = ", 0},
        {"prepared Q, one element", q_off, "prepared Q[batch 1, head 1, row 4, column 71] = ", last_query},
        {"prepared K, one element", k_off, "prepared K[batch 0, head 0, row 0, column 0] = ", 0},
        {"prepared K, one element", k_off, "prepared K[batch 1, head 0, row 6, column 71] = ", last_key},
        {"prepared V, one element", v_off, "prepared V[batch 0, head 0, row 0, column 0] = ", 0},
        {"prepared V, one element", v_off, "prepared V[batch 1, head 0, row 6, column 71] = ", last_key},
        {"prepared V, by a factor", v_factor, "prepared V[", 0},
    };
    mistake = (Mistake){"", nothing, NULL, 0};
    run_program(&badly_prepared, SHAPE " --json");
    expect(run.code == 0 && says_ok("v/wrong", "forward", "true") && says_ok("v/round", "prepare", "null") &&
               says_ok("v/round+wrong", "prepare and forward", "null") && !*run.err,
           "prepared, no mistake: nothing fails", "");
    expect(occurrences(run.out, "\"direction\": \"prepare\",") == 2, "each preparation has its row", "");
    run_program(&well_prepared, SHAPE " --json");
    expect(run.code == 0 && occurrences(run.out, "\"direction\": \"prepare\",") == 1 &&
               occurrences(run.out, "\"direction\": \"prepare and forward\",") == 2,
           "of two that prepare in the same way only the first", "");
    for (size_t i = 0; i < sizeof prepared / sizeof *prepared; i++) {
        mistake = prepared[i];
        expect_failure(&badly_prepared, SHAPE " --json", "forward", mistake.name, mistake.says);
    }
    mistake = (Mistake){"", v_nan, NULL, last_key};
    run_program(&badly_prepared, SHAPE " --json");
    expect(run.code == 1 && says_ok("v/wrong", "forward", "false") && says_ok("v/right", "forward", "true") &&
               strstr(run.err, "v/wrong: prepared V[batch 1, head 0, row 6, column 71] = nan, "),
           "prepared V, NaN", "");

    const Mistake attended[] = {
        {"O", o_off, "O[batch 1, head 1, row 4, column 71] = ", last_query},
        {"O", o_nan, "O[batch 1, head 1, row 4, column 71] = nan, ", last_query},
        {"O", o_factor, "O[", 0},
        {"LSE", lse_off, "LSE[batch 1, head 1, row 4] = ", last_query / D},
        {"LSE", lse_nan, "LSE[batch 0, head 0, row 0] = nan, ", 0},
        {"LSE", lse_base_2, "LSE[", 0},
    };
    for (size_t i = 0; i < sizeof attended / sizeof *attended; i++) {
        mistake = attended[i];
        expect_failure(&well_prepared, SHAPE " --json", "forward", "of prepared inputs", mistake.says);
    }

    /* S of 00_naive would be half a TiB; one of the keys exists. The oracle's samples stand in */
    const char *large =
        "--batch 1 --heads 1 --seqlen 262144 --seqlen-k 524288 --head-dim 8 --lengths 1 --iters 1 --variant wrong";
    mistake = (Mistake){"", nothing, NULL, 0};
    run_program(&well_prepared, large);
    expect(run.code == 0 && ends_with(run.out, "\nPASS  1 variant agrees with the fp64 oracle on 64 rows\n"),
           "prepared, and 00_naive does not fit", "");
    mistake = (Mistake){"", o_off, NULL, 7};
    run_program(&well_prepared, large);
    expect(run.code == 1 && strstr(run.out, "v/wrong: O[batch 0, head 0, row 0, column 7] = ") &&
               ends_with(run.out, "\nFAIL  the variant disagrees with the fp64 oracle on 64 rows\n"),
           "held against the oracle's samples", "");
}

int main(void) {
    test_forward();
    test_verdict();
    test_several();
    test_backward();
    test_prepared();
    ok(!run.leaks, "all device memory is given back");
    return tap_done();
}
