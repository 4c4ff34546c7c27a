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

/* What a variant can spoil: tensors, and buffers of its workspace. */
typedef enum { O, LSE, DQ, DK, DV, PREPARED_Q, PREPARED_K, PREPARED_V, K, S, P } Spoiled;
static const struct {
    const char *name;
    double off, factor; /* a summand and a factor that no rounding explains */
} SPOILED[] = {{"O", 0.01, 1.01},
               {"LSE", 0.001, 1.0001},
               {"dQ", 0.01, 1.02},
               {"dK", 0.01, 1.02},
               {"dV", 0.02, 1.02},
               {"prepared Q", 0.25, 0},
               {"prepared K", 0.25, 0},
               {"prepared V", 0.25, 1.0625},
               {"K", 0, 0},
               {"S", 0, 0},
               {"P", 0, 0}};
typedef struct {
    char *data; /* on the device */
    size_t count;
    Dtype dtype;
} Array;
static Array array_of(Spoiled which, const Problem *p, const Tensors *t, const Buffer *w) {
    switch (which) {
    case O: return (Array){t->o, query_elements(p), p->dtype};
    case LSE: return (Array){(char *)t->lse, row_count(p), DTYPE_FP32};
    case DQ: return (Array){t->dq, query_elements(p), p->dtype};
    case DK: return (Array){t->dk, key_elements(p), p->dtype};
    case DV: return (Array){t->dv, key_elements(p), p->dtype};
    case K: return (Array){(void *)t->k, key_elements(p), p->dtype};
    case S: return (Array){w[0].pointer, w[0].bytes / 4, DTYPE_FP32};
    case P: return (Array){w[1].pointer, w[1].bytes / dtype_bytes(p->dtype), p->dtype};
    default: return (Array){w[which - PREPARED_Q].pointer, w[which - PREPARED_Q].bytes / 2, DTYPE_BF16};
    }
}

/* What the variant named "wrong" does beyond the right thing. */
typedef void Make(const Array *a);
typedef struct {
    const char *name;
    Spoiled tensor;
    Make *make;
    size_t at;     /* the element, of a mistake in one */
    char says[80]; /* the line about it, after the variant's name */
} Mistake;
static Mistake mistake;
static int launches; /* of the wrong variant in this run */

static void make_mistake(const Problem *p, const Tensors *t, const Buffer *w) {
    const Array a = array_of(mistake.tensor, p, t, w);
    mistake.make(&a);
}

static double read_element(const Array *a, size_t index) {
    char bytes[4];
    device_read(bytes, a->data + index * dtype_bytes(a->dtype), dtype_bytes(a->dtype));
    return dtype_to_double(a->dtype, bytes, 0);
}
static void write_element(const Array *a, size_t index, double value) {
    char bytes[4];
    dtype_store(a->dtype, bytes, 0, value);
    device_write(a->data + index * dtype_bytes(a->dtype), bytes, dtype_bytes(a->dtype));
}
static void multiply(const Array *a, double factor) {
    for (size_t i = 0; i < a->count; i++)
        write_element(a, i, read_element(a, i) * factor);
}

/* in one element */
static void off(const Array *a) { write_element(a, mistake.at, read_element(a, mistake.at) + SPOILED[mistake.tensor].off); }
static void one_rounding_off(const Array *a) { write_element(a, mistake.at, read_element(a, mistake.at) * 1.001); }
static void half_off(const Array *a) { write_element(a, mistake.at, read_element(a, mistake.at) * 1.5); }
static void a_nan(const Array *a) { write_element(a, mistake.at, (double)NAN); }
static void infinite(const Array *a) { write_element(a, mistake.at, INFINITY); }
static void unwritten(const Array *a) {
    device_fill(a->data + mistake.at * dtype_bytes(a->dtype), 0xff, dtype_bytes(a->dtype));
}
/* in all of them */
static void nothing(const Array *a) { (void)a; }
static void by_a_factor(const Array *a) { multiply(a, SPOILED[mistake.tensor].factor); }
static void in_base_2(const Array *a) { multiply(a, 1.442695); }
static void all_unwritten(const Array *a) { device_fill(a->data, 0xff, a->count * dtype_bytes(a->dtype)); }
static void past_the_end(const Array *a) { device_write(a->data + a->count * dtype_bytes(a->dtype), "", 1); }
/* other bits from the second run on: a thousandth, within what rounding allows, or three */
static void differs(const Array *a) { write_element(a, mistake.at, read_element(a, mistake.at) * (launches ? 1.001 : 1)); }
static void all_differ(const Array *a) { multiply(a, launches ? 1.003 : 1); }

/* A mistake in one element: the line names it, and says what it is; in the first and in the last one. */
static int is_of_keys(Spoiled tensor) {
    return tensor == DK || tensor == DV || tensor == PREPARED_K || tensor == PREPARED_V;
}
static Mistake in_element(const char *name, Spoiled tensor, Make *make, RowIndex at, int column, const char *is) {
    Mistake m = {name, tensor, make, 0, ""};
    const int heads = is_of_keys(tensor) ? KV_HEADS : HEADS, rows = is_of_keys(tensor) ? KEYS : ROWS;
    char columns[32] = "";
    m.at = ((size_t)at.batch * heads + at.head) * rows + at.row;
    if (tensor != LSE) {
        m.at = m.at * D + column;
        snprintf(columns, sizeof columns, ", column %d", column);
    }
    snprintf(m.says, sizeof m.says, "%s[batch %d, head %d, row %d%s] = %s", SPOILED[tensor].name, at.batch, at.head, at.row,
             columns, is);
    return m;
}
static Mistake in_first(const char *name, Spoiled tensor, Make *make, const char *is) {
    return in_element(name, tensor, make, (RowIndex){0, 0, 0}, 0, is);
}
static Mistake in_last(const char *name, Spoiled tensor, Make *make, const char *is) {
    const RowIndex last = {BATCH - 1, is_of_keys(tensor) ? KV_HEADS - 1 : HEADS - 1,
                           is_of_keys(tensor) ? KEYS - 1 : ROWS - 1};
    return in_element(name, tensor, make, last, D - 1, is);
}
/* One that many elements show; and one outside of the tensor. */
static Mistake in_all(const char *name, Spoiled tensor, Make *make) {
    Mistake m = {name, tensor, make, 0, ""};
    snprintf(m.says, sizeof m.says, make == past_the_end ? "wrote outside %s\n" : "%s[", SPOILED[tensor].name);
    return m;
}

/* ---- the forward table ---- */

static int naive_workspace(const Problem *p, Buffer *w) { return naive_variant.plan(p, w); }
static void right(const Problem *p, const Tensors *t, const Buffer *w) { naive_variant.launch(p, t, w); }
static void wrong(const Problem *p, const Tensors *t, const Buffer *w) {
    right(p, t, w);
    make_mistake(p, t, w);
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
    { .name = n, .launch = l, .plan = naive_workspace, .dtypes = ALL }
#define RIGHT FORWARD_VARIANT("right", right)
#define WRONG FORWARD_VARIANT("wrong", wrong)
#define REFUSING                                                                                                            \
    { .name = "wrong", .launch = wrong, .dtypes = ALL, .refuses = refuses }
static const Variant wrong_naive = FORWARD_VARIANT("00_naive", wrong);
static const Stage
    wrong_first = {.name = "v", .variants = {WRONG, RIGHT}},
    wrong_last = {.name = "v", .variants = {RIGHT, WRONG}},
    both_wrong = {.name = "v", .variants = {WRONG, FORWARD_VARIANT("bad", wrong)}},
    none_written = {.name = "v", .variants = {FORWARD_VARIANT("wrong", writes_nothing), RIGHT}},
    wrong_scale = {.name = "v", .variants = {FORWARD_VARIANT("wrong", scale_off), RIGHT}},
    wrong_lengths = {.name = "v", .variants = {FORWARD_VARIANT("wrong", ignores_lengths), RIGHT}},
    wrong_reference = {.name = "v", .variants = {RIGHT}, .reference = &wrong_naive},
    reference_alone = {.name = "v", .reference = &wrong_naive},
    in_bf16 = {.name = "v",
               .variants = {{.name = "wrong", .launch = wrong_in_bf16, .plan = naive_workspace, .dtypes = FP16 | BF16}}},
    one_refuses = {.name = "v", .variants = {REFUSING, RIGHT}}, all_refuse = {.name = "v", .variants = {REFUSING}};

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

static void test_forward(void) {
    mistake = in_all("", O, nothing);
    run_program(&wrong_first, SHAPE " --json");
    expect(run.code == 0 && says_ok("v/wrong", "forward", "true") && says_ok("00_naive", "forward", "true") && !*run.err,
           "no mistake: nothing fails", "");
    run_program(&wrong_first, SHAPE);
    expect(run.code == 0 && ends_with(run.out, "\nPASS  2 variants agree with 00_naive\n"), "and the verdict is PASS", "");

    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS; h++)
            for (int last = 0; last < 2; last++) {
                const RowIndex at = {b, h, last * (ROWS - 1)};
                expect_forward(in_element("off", O, off, at, last * (D - 1), ""));
                expect_forward(in_element("unwritten", O, unwritten, at, last * (D - 1), ""));
                expect_forward(in_element("off", LSE, off, at, 0, ""));
            }
    expect_forward(in_element("NaN", O, a_nan, (RowIndex){1, 0, 2}, 7, "nan, "));
    expect_forward(in_element("infinity", O, infinite, (RowIndex){1, 0, 2}, 7, "inf, "));
    expect_forward(in_all("by a factor", O, by_a_factor));
    expect_forward(in_last("NaN", LSE, a_nan, "nan, "));
    expect_forward(in_all("by a factor", LSE, by_a_factor));
    expect_forward(in_all("in base 2", LSE, in_base_2));
    static const Spoiled tensors[] = {O, LSE, K, S, P};
    for (size_t i = 0; MAY_WRITE_PAST && i < sizeof tensors / sizeof *tensors; i++)
        expect_forward(in_all("past the end", tensors[i], past_the_end));
    expect_failure(&none_written, SHAPE " --json", "forward", "nothing written",
                   "O[batch 0, head 0, row 0, column 0] = nan, ");
    expect(strstr(run.err, "v/wrong: LSE[batch 0, head 0, row 0] = nan, ") != NULL, "nothing written", "LSE is named, too");
    expect_failure(&wrong_scale, SHAPE " --json", "forward", "scale by a thousandth", "LSE[");
    expect_failure(&wrong_lengths, SHAPE " --lengths 7,3 --json", "forward", "key lengths ignored", "O[batch 1, ");

    /* the shape of the CPU's defaults, where scores and bounds are larger */
    const char *large = "--batch 1 --heads 2 --seqlen 256 --head-dim 64 --iters 1 --json";
    expect_failure(&wrong_scale, large, "forward", "256 x 256: scale by a thousandth", "O[");
    mistake = in_all("", LSE, by_a_factor);
    expect_failure(&wrong_first, large, "forward", "256 x 256: LSE by a factor of 1.0001", "LSE[");
    mistake = in_first("", O, a_nan, "");
    expect_failure(&wrong_first, SHAPE " --dtype fp32 --json", "forward", "NaN in fp32", "O[");
}

/* Whose mistake it is, and what the last line and the exit code make of it. */
static void test_verdict(void) {
    const struct {
        const Stage *stage;
        Spoiled tensor;
        Make *make;
        const char *options, *row, *verdict;
        int code;
    } cases[] = {
        {&wrong_first, O, a_nan, SHAPE, "v/wrong", "FAIL  1 of 2 variants disagrees with 00_naive\n", 1},
        {&wrong_last, O, a_nan, SHAPE, "v/wrong", "FAIL  1 of 2 variants disagrees with 00_naive\n", 1},
        {&both_wrong, O, a_nan, SHAPE, "v/bad", "FAIL  2 of 2 variants disagree with 00_naive\n", 1},
        {&wrong_last, O, a_nan, SHAPE " --variant right", "v/right", "PASS  1 variant agrees with 00_naive\n", 0},
        {&wrong_last, O, a_nan, SHAPE " --variant wrong", "v/wrong", "FAIL  the variant disagrees with 00_naive\n", 1},
        {&wrong_last, O, a_nan, SHAPE " --variant 00_naive", "00_naive",
         "PASS  00_naive agrees with the fp64 oracle on 20 rows\n", 0},
        {&wrong_last, O, a_nan, SHAPE " --no-validate", "v/wrong", "not validated\n", 0},
        {&wrong_last, O, a_nan, SHAPE " --scale 1e5", "v/wrong", "FAIL  1 of 2 variants disagrees with 00_naive\n", 1},
        {&wrong_last, O, nothing, SHAPE " --scale 1e5", "v/wrong", "PASS  2 variants agree with 00_naive; not checked: O\n",
         0},
        {&wrong_last, LSE, half_off, SHAPE " --scale 1e5", "v/wrong", "FAIL  1 of 2 variants disagrees with 00_naive\n", 1},
        {&wrong_reference, O, a_nan, SHAPE, "00_naive", "FAIL  00_naive disagrees with the fp64 oracle on 20 rows\n", 1},
        {&wrong_reference, O, off, SHAPE, "00_naive", "FAIL  00_naive disagrees with the fp64 oracle on 20 rows\n", 1},
        {&wrong_reference, LSE, off, SHAPE, "00_naive", "FAIL  00_naive disagrees with the fp64 oracle on 20 rows\n", 1},
        {&wrong_reference, O, nothing, SHAPE, "00_naive", "PASS  1 variant agrees with 00_naive\n", 0},
        {&reference_alone, LSE, a_nan, SHAPE, "00_naive", "FAIL  00_naive disagrees with the fp64 oracle on 20 rows\n", 1},
        {&reference_alone, O, nothing, SHAPE, "00_naive", "PASS  00_naive agrees with the fp64 oracle on 20 rows\n", 0},
        {&one_refuses, O, nothing, SHAPE, "v/right", "PASS  1 variant agrees with 00_naive\n", 0},
        {&all_refuse, O, nothing, SHAPE, "00_naive", "NOT RUN  no variant of v can run this problem here\n", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char row[80];
        mistake = in_last("", cases[i].tensor, cases[i].make, "");
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

    mistake = in_last("", LSE, a_nan, "");
    run_program(&wrong_last, SHAPE);
    expect(strstr(run.out, " nan / ") != NULL, "the row shows the comparison that failed, not the first", "");
    mistake = in_last("", O, one_rounding_off, "");
    run_program(&wrong_last, SHAPE " --json");
    expect(run.code == 0 && occurrences(run.out, "\"worst_error\": 0,") == 1, "if none did, the first", "");
    if (MAY_WRITE_PAST) {
        mistake = in_all("", O, past_the_end);
        run_program(&wrong_last, SHAPE " --no-validate");
        expect(ends_with(run.out, "\nFAIL  1 of 2 variants wrote outside their own memory\n"), "not validated", "");
        run_program(&wrong_last, SHAPE);
        expect(ends_with(run.out, "\nFAIL  1 of 2 variants wrote outside their own memory\n"), "right, but outside, too", "");
        run_program(&wrong_reference, SHAPE);
        expect(ends_with(run.out, "\nFAIL  00_naive wrote outside its own memory\n"), "the reference", "");
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
    mistake = in_first("", O, a_nan, "");
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
    make_mistake(p, t, none);
    launches++;
}

#define BACKWARD_VARIANT(n, l, is_unordered)                                                                                \
    { .name = n, .launch = l, .dtypes = ALL, .unordered = is_unordered }
#define BACKWARD_STAGE(f, r, l, is_unordered)                                                                               \
    {                                                                                                                       \
        .name = "v", .kind = BACKWARD, .forward = &f, .reference = &r, .variants = {                                        \
            BACKWARD_VARIANT("wrong", l, is_unordered),                                                                     \
            BACKWARD_VARIANT("right", gradients, is_unordered)                                                              \
        }                                                                                                                   \
    }
static const Variant forward_pass = FORWARD_VARIANT("forward", right), /* with its workspace */
    wrong_forward_pass = FORWARD_VARIANT("forward", wrong), naive_gradients = BACKWARD_VARIANT("00_naive", gradients, 1),
                     wrong_naive_gradients = BACKWARD_VARIANT("00_naive", wrong_gradients, 1);
static const Stage backward = BACKWARD_STAGE(forward_pass, naive_gradients, wrong_gradients, 1),
                   backward_same_bits = BACKWARD_STAGE(forward_pass, naive_gradients, wrong_gradients, 0),
                   wrong_forward = BACKWARD_STAGE(wrong_forward_pass, naive_gradients, gradients, 1),
                   wrong_backward_reference = BACKWARD_STAGE(forward_pass, wrong_naive_gradients, gradients, 1);

/* Elements are counted once, in however many runs they differ. */
static void test_repeats(void) {
    mistake = in_all("", DQ, all_differ);
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
    mistake = in_all("", O, nothing);
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
    mistake = in_all("", DV, by_a_factor);
    run_program(&backward, json);
    expect(run.code == 1 && says_ok("v/wrong", "backward", "false"), "one key: a wrong dV", "");
    mistake = in_first("", DK, off, "");
    run_program(&backward, json);
    expect(run.code == 1 && says_ok("v/wrong", "backward", "false"), "one key: dK far from 0", "");
    mistake = in_first("", DQ, a_nan, "");
    run_program(&backward, json);
    expect(run.code == 1 && says_ok("v/wrong", "backward", "false"), "one key: NaN in dQ", "");
}

static void test_backward_mistake(Mistake m) {
    mistake = m;
    expect_failure(&backward, SHAPE " --json", "backward", m.name, m.says);
    expect(!strchr(run.err, '[') || strchr(run.err, '[') == strrchr(run.err, '['), m.name, "and nothing else is bad");
    expect(!strstr(run.err, "dS"), m.name, "nor is dS blamed");
    if (m.make == past_the_end)
        return;
    char line[256];
    snprintf(line, sizeof line, "00_naive: %s", m.says);
    run_program(&wrong_backward_reference, SHAPE " --json");
    expect(run.code == 1 && says_ok("00_naive", "backward", "false") && strstr(run.err, line) == run.err,
           "00_naive, held against fp64", m.says);
}

static void test_backward(void) {
    mistake = in_all("", O, nothing);
    run_program(&backward, SHAPE " --json");
    expect(run.code == 0 && says_ok("v/wrong", "backward", "true") && says_ok("00_naive", "backward", "true") &&
               says_ok("forward", "forward", "true") && !*run.err,
           "backward, no mistake: nothing fails", "");
    /* S and P of 20 rows and 7 keys are 840 bytes; the gradients have no workspace */
    expect(occurrences(run.out, "\"workspace_bytes\": 840, ") == 3 && occurrences(run.out, "\"tensor_bytes\": 19664, ") == 5,
           "the forward pass's workspace counts in its row, and in both", "");
    for (Spoiled tensor = DQ; tensor <= DV; tensor++) {
        test_backward_mistake(in_first("off", tensor, off, ""));
        test_backward_mistake(in_last("off", tensor, off, ""));
        test_backward_mistake(in_last("NaN", tensor, a_nan, "nan, "));
        test_backward_mistake(in_all("by a factor", tensor, by_a_factor));
        test_backward_mistake(in_first("unwritten", tensor, all_unwritten, "nan, "));
        if (MAY_WRITE_PAST)
            test_backward_mistake(in_all("past the end", tensor, past_the_end));

        mistake = in_last("", tensor, differs, "");
        expect_failure(&backward_same_bits, SHAPE " --json", "backward", "other bits in every run", mistake.says);
        launches = 0;
        run_program(&backward, SHAPE);
        expect(run.code == 0 && strstr(run.out, "; 4 runs differ by up to ") && strstr(run.out, "; 4 runs are bit-equal"),
               "where equal bits are not claimed that is only told", "");
    }
    test_repeats();
    test_one_key();

    mistake = in_first("", O, a_nan, "");
    run_program(&wrong_forward, SHAPE);
    expect(run.code == 1 &&
               ends_with(run.out, "\nFAIL  the forward pass, forward, disagrees with the fp64 oracle on 20 rows\n"),
           "the forward pass is wrong", "");
    mistake = in_first("", LSE, off, "");
    run_program(&wrong_forward, SHAPE " --json");
    expect(run.code == 1 && says_ok("forward", "forward", "false") && says_ok("v/right", "backward", "true"), "in JSON", "");
    mistake = in_all("", DQ, by_a_factor);
    run_program(&wrong_backward_reference, SHAPE);
    expect(run.code == 1 && ends_with(run.out, "\nFAIL  00_naive disagrees with the fp64 oracle on 20 rows\n"),
           "the verdict", "");
}

/* ---- the preparing table: Q, K and V rounded to bf16, attention of those in double precision ---- */

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
    make_mistake(p, t, w);
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
    make_mistake(p, t, w);
}

#define PREPARING(n, l, pre)                                                                                                \
    {                                                                                                                       \
        .name = n, .launch = l, .plan = prepare_plan, .dtypes = ALL, .preparation = &(Preparation) {                        \
            .name = "round", .launch = pre, .values = prepared_values                                                       \
        }                                                                                                                   \
    }
#define PREPARING_STAGE(l, pre)                                                                                             \
    {                                                                                                                       \
        .name = "v", .variants = { PREPARING("wrong", l, pre), PREPARING("right", attend, prepare) }                        \
    }
static const Stage badly_prepared = PREPARING_STAGE(attend, wrong_prepare),
                   well_prepared = PREPARING_STAGE(wrong_attend, prepare);

/* Not NaN: with it other lines come first. */
static void expect_prepared(const Stage *stage, Mistake m) {
    mistake = m;
    expect_failure(stage, SHAPE " --json", "forward", m.name, m.says);
}
static void test_prepared(void) {
    mistake = in_all("", O, nothing);
    run_program(&badly_prepared, SHAPE " --json");
    expect(run.code == 0 && says_ok("v/wrong", "forward", "true") && says_ok("v/round", "prepare", "null") &&
               says_ok("v/round+wrong", "prepare and forward", "null") && !*run.err,
           "prepared, no mistake: nothing fails", "");
    expect(occurrences(run.out, "\"direction\": \"prepare\",") == 2, "each preparation has its row", "");
    run_program(&well_prepared, SHAPE " --json");
    expect(run.code == 0 && occurrences(run.out, "\"direction\": \"prepare\",") == 1 &&
               occurrences(run.out, "\"direction\": \"prepare and forward\",") == 2,
           "of two that prepare in the same way only the first", "");
    for (Spoiled tensor = PREPARED_Q; tensor <= PREPARED_V; tensor++) {
        expect_prepared(&badly_prepared, in_first("off", tensor, off, ""));
        expect_prepared(&badly_prepared, in_last("off", tensor, off, ""));
    }
    expect_prepared(&badly_prepared, in_all("by a factor", PREPARED_V, by_a_factor));
    mistake = in_last("", PREPARED_V, a_nan, "");
    run_program(&badly_prepared, SHAPE " --json");
    expect(run.code == 1 && says_ok("v/wrong", "forward", "false") && says_ok("v/right", "forward", "true") &&
               strstr(run.err, "v/wrong: prepared V[batch 1, head 0, row 6, column 71] = nan, "),
           "prepared V, NaN", "");
    expect_prepared(&well_prepared, in_last("off", O, off, ""));
    expect_prepared(&well_prepared, in_last("NaN", O, a_nan, "nan, "));
    expect_prepared(&well_prepared, in_all("by a factor", O, by_a_factor));
    expect_prepared(&well_prepared, in_last("off", LSE, off, ""));
    expect_prepared(&well_prepared, in_first("NaN", LSE, a_nan, "nan, "));
    expect_prepared(&well_prepared, in_all("in base 2", LSE, in_base_2));

    /* S of 00_naive would be half a TiB; one of the keys exists. The oracle's samples stand in */
    const char *large =
        "--batch 1 --heads 1 --seqlen 262144 --seqlen-k 524288 --head-dim 8 --lengths 1 --iters 1 --variant wrong";
    mistake = in_all("", O, nothing);
    run_program(&well_prepared, large);
    expect(run.code == 0 && ends_with(run.out, "\nPASS  1 variant agrees with the fp64 oracle on 64 rows\n"),
           "prepared, and 00_naive does not fit", "");
    mistake = in_element("", O, off, (RowIndex){0, 0, 0}, 7, "");
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
