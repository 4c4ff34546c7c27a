/* options.c - each option lands in its own place, with its own value, and what is not given is filled in as --help says. What is
 * refused is options.t's.
 */
#include "../common/harness/options.h"
#include "../common/harness/problems.h"
#include "capture.h"
#include "tap.h"

#include <limits.h>
#include <string.h>

/* Keeps what it was given. */
static const Blocks *read_spec(const char *option, const char *text, const Problem *p) {
    Blocks *blocks = host_alloc(1, sizeof *blocks);
    *blocks = (Blocks){.text = text, .mask = {.window = strcmp(option, "spec") == 0 ? p->seqlen_k : -1}};
    return blocks;
}

static const Stage stage = {.name = "09_test",
                            .read_mask = read_spec,
                            .variants = {{.name = "first"}, {.name = "second"}},
                            .settings = {{.name = "pieces", .choices = "auto", .max = 9},
                                         {.name = "round"},
                                         {.name = "kind", .choices = "one|two|three"},
                                         {.name = "spec", .max = TEXT}}};
static const Stage alone = {.name = "00_naive"};
static const Stage masked = {.name = "09_test",
                             .read_mask = read_spec,
                             .default_mask = "usual",
                             .settings = {{.name = "round"}, {.name = "spec", .max = TEXT}}};
static const Stage decoding = {
    .name = "09_test",
    .kind = DECODING,
    .variants = {{.name = "v"}},
    .defaults = {{.batch = 2, .heads = 12, .kv_heads = 4, .seqlen_q = 3, .seqlen_k = 777, .head_dim = 96},
                 {.batch = 5, .heads = 6, .kv_heads = 3, .seqlen_q = 2, .seqlen_k = 88, .head_dim = 40}}};

/* "--batch 3 --heads 6" */
static Options parse(const Stage *of, const char *line) {
    static char text[9000], *words[40];
    snprintf(text, sizeof text, "%s", line);
    int count = words_of(text, words, 40);
    return options_parse(of, count, words);
}

static int same_text(const char *a, const char *b) { return (!a && !b) || (a && b && strcmp(a, b) == 0); }

/* Shape, dtype, causal and settings of two problems; the scale is a float and compared as it is. */
static int same_problem(const Problem *a, const Problem *b) {
    return a->batch == b->batch && a->heads == b->heads && a->kv_heads == b->kv_heads && a->seqlen_q == b->seqlen_q &&
           a->seqlen_k == b->seqlen_k && a->head_dim == b->head_dim && a->dtype == b->dtype && a->causal == b->causal &&
           a->scale == b->scale && memcmp(a->settings, b->settings, sizeof a->settings) == 0;
}

/* What the command line gave, each once; 0: nothing. */
static Problem given(const Options *o) {
    Problem p = {0};
    int values[AXES]; /* one of the fields is a float: writing it as an int is undefined */
    for (int i = 0; i < AXES; i++)
        values[i] = o->axes[i].count == 1 ? o->axes[i].values[0] : -o->axes[i].count;
    memcpy(&p, values, sizeof values);
    return p;
}

static int same_options(const Options *a, const Options *b) {
    Problem p = given(a);
    return same_problem(&p, &b->problem) && a->problem_count == 1 && same_text(a->variant, b->variant) &&
           a->iters == b->iters && a->device == (int)(b->device - 1u) && a->seed == b->seed && a->outliers == b->outliers &&
           a->warm == b->warm && a->scale == b->scale && same_text(a->load, b->load) && same_text(a->save, b->save) &&
           same_text(a->save_inputs, b->save_inputs) && a->format == b->format && a->validate == b->validate &&
           same_text(a->texts[3], b->texts[3]) && a->trace == b->trace && same_text(a->roofline, b->roofline) && !a->lengths.count;
}

static void test_each(void) {
    static const struct {
        const char *line;
        Options want; /* beside what is there without any option; device: the number after the one given */
    } cases[] = {
        {"", {.validate = 1}},
        {"--batch 3", {.problem.batch = 3, .validate = 1}},
        {"--batch 65535", {.problem.batch = 65535, .validate = 1}},
        {"--heads 4", {.problem.heads = 4, .validate = 1}},
        {"--heads 65535", {.problem.heads = 65535, .validate = 1}},
        {"--kv-heads 5", {.problem.kv_heads = 5, .validate = 1}},
        {"--kv-heads 65535", {.problem.kv_heads = 65535, .validate = 1}},
        {"--seqlen 6", {.problem.seqlen_q = 6, .validate = 1}},
        {"--seqlen 1073741824", {.problem.seqlen_q = 1 << 30, .validate = 1}},
        {"--seqlen-k 7", {.problem.seqlen_k = 7, .validate = 1}},
        {"--seqlen-k 1073741824", {.problem.seqlen_k = 1 << 30, .validate = 1}},
        {"--head-dim 256", {.problem.head_dim = 256, .validate = 1}},
        {"--dtype fp16", {.problem.dtype = DTYPE_FP16, .validate = 1}},
        {"--dtype bf16", {.problem.dtype = DTYPE_BF16, .validate = 1}},
        {"--dtype fp32", {.problem.dtype = DTYPE_FP32, .validate = 1}},
        {"--causal", {.problem.causal = 1, .validate = 1}},
        {"--mask causal", {.problem.causal = 1, .validate = 1}},
        {"--scale 0.5", {.scale = 0.5f, .validate = 1}},
        {"--scale .25", {.scale = 0.25f, .validate = 1}},
        {"--scale 1e6", {.scale = 1e6f, .validate = 1}},
        {"--variant second", {.variant = "second", .validate = 1}},
        {"--variant 09_test/first", {.variant = "first", .validate = 1}},
        {"--variant 00_naive", {.variant = "00_naive", .validate = 1}},
        {"--iters 1", {.iters = 1, .validate = 1}},
        {"--iters 1000000", {.iters = 1000000, .validate = 1}},
        {"--device 0", {.device = 1, .validate = 1}},
        {"--device 2147483647", {.device = INT_MIN, .validate = 1}},
        {"--seed 0", {.seed = 0, .validate = 1}},
        {"--seed 18446744073709551615", {.seed = UINT64_MAX, .validate = 1}},
        {"--inputs outliers", {.outliers = 1, .validate = 1}},
        {"--inputs normal", {.outliers = 0, .validate = 1}},
        {"--warm", {.warm = 1, .validate = 1}},
        {"--load a/b", {.load = "a/b", .validate = 1}},
        {"--save c --variant first", {.save = "c", .variant = "first", .validate = 1}},
        {"--save-inputs d", {.save_inputs = "d", .validate = 1}},
        {"--csv", {.format = FORMAT_CSV, .validate = 1}},
        {"--csv --csv", {.format = FORMAT_CSV, .validate = 1}},
        {"--json", {.format = FORMAT_JSON, .validate = 1}},
        {"--no-validate", {.validate = 0}},
        {"--pieces auto", {.problem.settings = {0}, .validate = 1}},
        {"--pieces 1", {.problem.settings = {1}, .validate = 1}},
        {"--pieces 9", {.problem.settings = {9}, .validate = 1}},
        {"--round", {.problem.settings = {0, 1}, .validate = 1}},
        {"--kind one", {.problem.settings = {0, 0, 0}, .validate = 1}},
        {"--kind three", {.problem.settings = {0, 0, 2}, .validate = 1}},
        {"--spec a,b:c", {.texts = {[3] = "a,b:c"}, .validate = 1}},
        {"--heads 8 --batch 2 --seqlen=9 --json --kind two --seed 3 --warm --iters 4 --causal",
         {.problem = {.batch = 2, .heads = 8, .seqlen_q = 9, .causal = 1, .settings = {0, 0, 1}},
          .seed = 3,
          .warm = 1,
          .iters = 4,
          .format = FORMAT_JSON,
          .validate = 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Options got = parse(&stage, cases[i].line), want = cases[i].want;
        want.roofline = want.roofline ? want.roofline : "h200";
        ok(same_options(&got, &want), "'%s'", cases[i].line);
        options_free(&got);
    }
    ok(same_text(parse(&alone, "").variant, "00_naive"), "a stage without variants runs 00_naive");

    Options o = parse(&stage, "--lengths 5 --lengths 17,0,256");
    ok(o.lengths.count == 3 && o.lengths.values[0] == 17 && o.lengths.values[1] == 0 && o.lengths.values[2] == 256,
       "--lengths 17,0,256");
    options_free(&o);
}

#define SHAPE(b, h, kv, q, k, d)                                                                                            \
    { .batch = b, .heads = h, .kv_heads = kv, .seqlen_q = q, .seqlen_k = k, .head_dim = d }
static void test_together(void) {
    static const struct {
        const Stage *stage;
        const char *line;
        int is_cpu;
        Problem want;
    } cases[] = {
        {&stage, "", 0, SHAPE(4, 16, 16, 4096, 4096, 128)},
        {&stage, "", 1, SHAPE(1, 2, 2, 256, 1024, 64)},
        {&decoding, "", 0, SHAPE(2, 12, 4, 3, 777, 96)},
        {&decoding, "", 1, SHAPE(5, 6, 3, 2, 88, 40)},
        {&stage, "--seqlen 9", 1, SHAPE(1, 2, 2, 9, 9, 64)},
        {&stage, "--seqlen-k 9", 1, SHAPE(1, 2, 2, 256, 9, 64)},
        {&stage, "--seqlen 7 --seqlen-k 9", 1, SHAPE(1, 2, 2, 7, 9, 64)},
        {&decoding, "--seqlen 7", 1, SHAPE(5, 6, 3, 7, 88, 40)},
        {&stage, "--heads 6", 1, SHAPE(1, 6, 6, 256, 1024, 64)},
        {&decoding, "--heads 8", 0, SHAPE(2, 8, 8, 3, 777, 96)},
        {&decoding, "--kv-heads 6", 0, SHAPE(2, 12, 6, 3, 777, 96)},
        {&stage, "--batch 65535 --heads 1 --head-dim 256", 1, SHAPE(65535, 1, 1, 256, 1024, 256)},
        /* the largest Q, and the 2^58 elements that S may have */
        {&stage, "--batch 1 --heads 32768 --seqlen 1073741824 --seqlen-k 1 --head-dim 256", 1,
         SHAPE(1, 32768, 32768, 1 << 30, 1, 256)},
        {&stage, "--batch 1 --heads 1 --seqlen 268435456 --seqlen-k 1073741824", 1, SHAPE(1, 1, 1, 1 << 28, 1 << 30, 64)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Options o = parse(cases[i].stage, cases[i].line);
        Problem want = cases[i].want;
        want.scale = (float)(1 / sqrt(want.head_dim));
        options_select(&o, 0, cases[i].is_cpu);
        float difference = fabsf(o.problem.scale - want.scale);
        want.scale = difference < 1e-7f ? o.problem.scale : want.scale;
        ok(same_problem(&o.problem, &want), "'%s' %s", cases[i].line, cases[i].is_cpu ? "on the CPU device" : "on a GPU");
        options_free(&o);
    }
    Options o = parse(&stage, "--scale 3 --batch 3 --lengths 9 --seqlen 9");
    options_select(&o, 0, 1);
    ok(o.problem.scale == 3 && o.key_lengths[0] == 9 && o.key_lengths[1] == 9 && o.key_lengths[2] == 9,
       "one length for all entries");
    options_free(&o);
    o = parse(&stage, "--batch 3 --lengths 9,0,4 --seqlen 9");
    options_select(&o, 0, 1);
    ok(o.key_lengths[0] == 9 && o.key_lengths[1] == 0 && o.key_lengths[2] == 4, "one length for each entry");
    options_free(&o);
}

/* Several values: all combinations, in the order of Problem's fields, the last fastest; and what follows another value follows each
 * of them. */
static void test_several(void) {
    Options o =
        parse(&stage, "--kind three,one --mask full,causal --seqlen 5,6 --batch 2,1 --pieces 4,auto,7 --dtype fp32,bf16 "
                      "--lengths 3");
    int index = 0, wrong = 0;
    for (int batch = 2; batch > 0; batch--)
        for (int seqlen = 5; seqlen <= 6; seqlen++)
            for (Dtype dtype = DTYPE_FP32; dtype >= DTYPE_BF16; dtype--)
                for (int causal = 0; causal < 2; causal++)
                    for (int pieces = 0; pieces < 3; pieces++)
                        for (int kind = 2; kind >= 0; kind -= 2) {
                            Problem want = {batch, 2,     2,      seqlen, seqlen,
                                            64,    dtype, causal, 0.125f, {(int[]){4, 0, 7}[pieces], 0, kind}, NULL, NULL};
                            options_select(&o, index, 1);
                            wrong += !same_problem(&o.problem, &want) || o.selected != index++;
                            wrong += o.key_lengths[0] != 3 || o.key_lengths[batch - 1] != 3;
                        }
    ok(o.problem_count == 96 && index == 96 && !wrong, "96 combinations, each in its place");
    options_free(&o);

    o = parse(&stage, "--heads 4,6 --seqlen 8,16 --seqlen-k 3");
    options_select(&o, 3, 1);
    ok(o.problem_count == 4 && o.problem.heads == 6 && o.problem.kv_heads == 6 && o.problem.seqlen_q == 16 &&
           o.problem.seqlen_k == 3,
       "key/value heads follow each number of heads, keys only queries that nothing else is said of");
    options_free(&o);

    o = parse(&stage, "--seqlen-k 4,6 --spec a,b");
    options_select(&o, 0, 1);
    options_select(&o, 1, 1);
    ok(o.problem_count == 2 && same_text(o.problem.blocks->text, "a,b") && o.problem.blocks->mask.window == 6,
       "a text is read for each problem");
    options_free(&o);

    o = parse(&stage, "--load folder");
    o.loaded = (Problem){.batch = 7, .heads = 6, .kv_heads = 2, .seqlen_q = 5, .seqlen_k = 4, .head_dim = 24};
    options_select(&o, 0, 1);
    o.loaded.scale = o.problem.scale;
    ok(same_problem(&o.problem, &o.loaded), "the shape that the files of --load have");
    options_free(&o);

    char line[9000] = "--seqlen 1";
    for (int axis = 0; axis < 2; axis++) {
        for (int i = 1; i < 1000; i++)
            strcat(line, ",1");
        strcat(line, axis ? "" : " --seqlen-k 1");
    }
    o = parse(&stage, line);
    ok(o.problem_count == 1000000, "a million problems are not too many");
    options_free(&o);
}

/* The stage's own mask, unless the command line has one. */
static void test_masks(void) {
    const struct {
        const Stage *stage;
        const char *line, *mask;
    } masks[] = {{&stage, "", NULL},
                 {&masked, "", "usual"},
                 {&masked, "--round --seqlen 5", "usual"},
                 {&masked, "--spec own", "own"}};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        Options o = parse(masks[i].stage, masks[i].line);
        options_select(&o, 0, 1);
        ok(same_text(o.problem.blocks ? o.problem.blocks->text : NULL, masks[i].mask), "'%s': the mask %s", masks[i].line,
           masks[i].mask ? masks[i].mask : "is none");
        options_free(&o);
    }
}

static void check(void *options) { check_options(options); }

/* A row of main.c that somebody is still writing. */
static void test_unfinished(void) {
    Stage no_launch = {.name = "11_mine", .variants = {{.name = "mine", .dtypes = 1}}};
    Options o = parse(&no_launch, "--seqlen 1");
    char *text = said(check, &o);
    ok(strstr(text, "mine") && strstr(text, ".launch"), "a row without .launch is refused");
    free(text);
    options_free(&o);
}

int main(void) {
    test_each();
    test_together();
    test_several();
    test_masks();
    test_unfinished();
    return tap_done();
}
