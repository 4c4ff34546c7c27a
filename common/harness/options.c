/* options.c - see options.h. */
#include "options.h"

#include "../host/chips.h"
#include "../host/errors.h"
#include "../host/memory.h"
#include "../host/text.h"
#include "help.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An option: what it takes, as the options of a stage say it (stage.h), what reads it, and where that leaves it. */
typedef struct Option Option;
typedef void Parser(Options *o, const Option *option, const char *text);
struct Option {
    Setting is;
    const char *value; /* what --help calls its value; NULL: a flag */
    Parser *parse;
    size_t field; /* of Options */
};

/* ---- parsers ---- */

/* A whole number in plain digits, and nothing else in so many characters. Returns 0 if there is none, or one that passes `max`. */
static int parse_whole(const char *text, size_t length, uint64_t max, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return isdigit((unsigned char)*text) && end == text + length && errno == 0 && *value <= max;
}

/* What an item of the option's text stands for: the number of a choice, or a whole number. */
static int value_of(const Option *option, const char *item, size_t length, const char *text) {
    int number = 0;
    for (const char *choice = option->is.choices; choice; number++) {
        size_t choice_length = strcspn(choice, "|");
        if (choice_length == length && strncmp(choice, item, length) == 0)
            return number;
        choice = strchr(choice, '|');
        choice = choice ? choice + 1 : NULL;
    }
    uint64_t value;
    if (option->is.max && parse_whole(item, length, (uint64_t)option->is.max, &value) && value > 0)
        return (int)value;
    cannot_run("--%s %s: choose %s", option->is.name, text, taken_by(&option->is));
}

/* "a,b,c"; a flag stands for 1. */
static void set_list(Options *o, const Option *option, const char *text) {
    List *list = (List *)((char *)o + option->field);
    const char *item = text ? text : "1";
    free(list->values);
    *list = (List){host_alloc(strlen(item), sizeof(int)), 0};
    do {
        size_t length = strcspn(item, ",");
        list->values[list->count++] = value_of(option, item, length, text);
        item += length;
    } while (*item++ == ',');
}

/* A flag leaves its `max`. */
static void set_int(Options *o, const Option *option, const char *text) {
    *(int *)((char *)o + option->field) = text ? value_of(option, text, strlen(text), text) : option->is.max;
}

static void set_scale(Options *o, const Option *option, const char *text) {
    char *end;
    o->scale = strtof(text, &end);
    if (!strchr(".0123456789", *text) || *end != '\0' || !(o->scale > 0 && o->scale <= 1e6f))
        cannot_run("--%s %s: choose a number above 0, up to 1e6", option->is.name, text);
}

static void set_seed(Options *o, const Option *option, const char *text) {
    if (!parse_whole(text, strlen(text), UINT64_MAX, &o->seed))
        cannot_run("--%s %s: choose a whole number from 0 to 2^64 - 1", option->is.name, text);
}

/* A setting of the stage that is a text. */
static void add_text(Options *o, const Option *option, const char *text) {
    char **joined = (char **)((char *)o + option->field), *before = *joined;
    size_t length = (before ? strlen(before) : 0) + strlen(text) + 2;
    *joined = host_alloc(length, 1);
    snprintf(*joined, length, "%s%s%s", before ? before : "", before ? "+" : "", text);
    free(before);
}

static void set_text(Options *o, const Option *option, const char *text) {
    *(const char **)((char *)o + option->field) = text;
}

/* "mma", "01_tiled/mma", or "00_naive". */
static void set_variant(Options *o, const Option *option, const char *text) {
    size_t prefix = strlen(o->stage->name);
    const char *name = strncmp(text, o->stage->name, prefix) == 0 && text[prefix] == '/' ? text + prefix + 1 : text;
    const char *names[MAX_VARIANTS + 1] = {NAIVE};
    char choices[32 * (MAX_VARIANTS + 1)] = NAIVE;
    for (int i = 0; o->stage->variants[i].name; i++) {
        names[i + 1] = o->stage->variants[i].name;
        append(choices, sizeof choices, "|%s", names[i + 1]);
    }
    Option variant = {.is = {.name = option->is.name, .choices = choices}};
    o->variant = names[value_of(&variant, name, strlen(name), text)];
}

static Parser show_help;

/* ---- the options ---- */

/* An entry without a name is a heading of --help. */
/* clang-format off */
#define AXIS(member) set_list, offsetof(Options, axes[offsetof(Problem, member) / sizeof(int)])
#define FIELD(member) offsetof(Options, member)
static const Option OPTIONS[] = {
    {{NULL, NULL, 0, "the problem"}, NULL, NULL, 0},
    {{"batch", NULL, MAX_BATCH, "batch entries, all of the same shape"}, "N", AXIS(batch)},
    {{"heads", NULL, MAX_HEADS, "query heads per batch entry"}, "N", AXIS(heads)},
    {{"kv-heads", NULL, MAX_HEADS, "key/value heads, each shared by a group of query heads; must divide --heads; default: as --heads"}, "N", AXIS(kv_heads)},
    {{"seqlen", NULL, MAX_SEQLEN, "queries per head, Sq"}, "N", AXIS(seqlen_q)},
    {{"seqlen-k", NULL, MAX_SEQLEN, "keys per head, Sk; default: as --seqlen, or in decoding as above"}, "N", AXIS(seqlen_k)},
    {{"head-dim", NULL, MAX_HEAD_DIM, "D, elements per query, key, or value: a multiple of 8 up to 256; see below"}, "N", AXIS(head_dim)},
    {{"dtype", "fp16|bf16|fp32", 0, "format of Q, K, V, and O"}, "T", AXIS(dtype)},
    {{"mask", "full|causal", 0, "whether a query sees all keys, or only those that --causal leaves it"}, "M", AXIS(causal)},
    {{"causal", NULL, 1, "query i sees the keys up to i + Sk - Sq, or with --lengths up to i + key length - Sq; the same as --mask causal"}, NULL, AXIS(causal)},
    {{"lengths", "0", MAX_SEQLEN, "how many keys exist in each batch entry, as in 17,0,256 (one run); a single number applies to all"}, "L", set_list, FIELD(lengths)},
    {{"scale", NULL, 0, "factor by which Q K^T is multiplied; default: 1/sqrt(head dim)"}, "X", set_scale, 0},
    {{"seed", NULL, 0, "seed of the random inputs; default: 0"}, "N", set_seed, 0},
    {{"inputs", "normal|outliers", 0, "random numbers of mean 0 and variance 1; outliers adds one of variance 100 to 1 in 1000"}, "I", set_int, FIELD(outliers)},
    {{"load", NULL, 0, "reads shape, Q, K, and V from DIR/q.npy, k.npy, and v.npy: [batch, heads, seqlen, head_dim], fp16, fp32, or fp64"}, "DIR", set_text, FIELD(load)},

    {{NULL, NULL, 0, "the run"}, NULL, NULL, 0},
    {{"variant", NULL, 0, "runs only this one of the variants listed below; default: all of them"}, "V", set_variant, 0},
    {{"device", "0", INT_MAX, "number of the GPU to use; default: 0"}, "N", set_int, FIELD(device)},
    {{"rendezvous", NULL, 0, "one process per GPU, which mpirun, srun, or torchrun has started, for stages that take --devices: they meet in FILE and exchange data through NCCL"}, "FILE", set_text, FIELD(rendezvous)},
    {{"iters", NULL, 1000000, "number of timed runs, whose median is the latency; default: as many as fit into 100 ms, 5 to 100"}, "N", set_int, FIELD(iters)},
    {{"warm", NULL, 1, "leaves in the L2 cache what the previous run left there; otherwise it is emptied before each run"}, NULL, set_int, FIELD(warm)},
    {{"no-validate", NULL, 0, "only measures times, without 00_naive and without comparisons"}, NULL, set_int, FIELD(validate)},
    {{"save", NULL, 0, "writes O and LSE of the --variant to DIR/o.npy and lse.npy; LSE is ln of each row's sum of e^S"}, "DIR", set_text, FIELD(save)},
    {{"save-inputs", NULL, 0, "before the run, writes Q, K, and V as they will be used to DIR, in files that --load can read"}, "DIR", set_text, FIELD(save_inputs)},
    {{"csv", NULL, FORMAT_CSV, "prints the rows as comma-separated values, below a line of column names"}, NULL, set_int, FIELD(format)},
    {{"json", NULL, FORMAT_JSON, "prints the rows as JSON, one object per line"}, NULL, set_int, FIELD(format)},
    {{"help", NULL, 0, "prints this text; also -h"}, NULL, show_help, 0},

    {{NULL, NULL, 0, "the trace, in the program that make trace-STAGE builds"}, NULL, NULL, 0},
    {{"trace", NULL, 1, "reports memory traffic, bank conflicts, and races instead of times"}, NULL, set_int, FIELD(trace)},
    {{"watch", NULL, 0, "the same, and writes each step to FILE as JSON, from which make watch-STAGE makes a page"}, "FILE", set_text, FIELD(watch)},
    {{"roofline", NULL, 0, "with --trace or --watch: the chip to compare with; default: h200"}, "C", set_text, FIELD(roofline)},
};
/* clang-format on */
enum { COMMON_OPTIONS = sizeof OPTIONS / sizeof *OPTIONS };

static void show_help(Options *o, const Option *option, const char *text) {
    (void)option, (void)text;
    const Stage *stage = o->stage;
    help_begins(stage);
    for (const Option *each = OPTIONS; each < OPTIONS + COMMON_OPTIONS; each++)
        help_option(&each->is, each->value);
    for (int i = 0; stage->settings[i].name; i++) {
        printf("%s", i ? "" : "\noptions of this stage\n");
        help_option(&stage->settings[i], stage->settings[i].max == TEXT ? "SPEC" : stage->settings[i].choices ? "N" : NULL);
    }
    help_ends(stage);
    flush_output();
    exit(0);
}

/* ---- the command line ---- */

/* Whether a word of the command line is --name or --name=value. */
static int is_named(const char *word, const char *name) {
    size_t length = strcspn(word, "=");
    return name && strncmp(word, "--", 2) == 0 && strlen(name) == length - 2 && strncmp(word + 2, name, length - 2) == 0;
}

/* The stage's own options go through the same parser as those that every stage has. */
static Option find_option(const Stage *stage, const char *word) {
    word = strcmp(word, "-h") == 0 ? "--help" : word;
    for (int i = 0; i < COMMON_OPTIONS; i++)
        if (is_named(word, OPTIONS[i].is.name))
            return OPTIONS[i];
    for (size_t i = 0; stage->settings[i].name; i++)
        if (is_named(word, stage->settings[i].name)) {
            size_t axis = offsetof(Problem, settings) / sizeof(int) + i;
            Option own = {stage->settings[i], "N", set_list, offsetof(Options, axes) + axis * sizeof(List)};
            if (own.is.max == TEXT)
                return (Option){own.is, "SPEC", add_text, offsetof(Options, texts) + i * sizeof(char *)};
            if (!own.is.choices && !own.is.max)
                own.value = NULL, own.is.max = 1; /* a flag */
            return own;
        }
    cannot_run("%s: %s; --help lists them", word, *word == '-' ? "no such option" : "not an option");
}

/* Of each pair one would be ignored. */
static const char *const EITHER[][2] = {{"causal", "mask"},   {"csv", "json"},      {"csv", "trace"},   {"batch", "load"},
                                        {"heads", "load"},    {"kv-heads", "load"}, {"seqlen", "load"}, {"seqlen-k", "load"},
                                        {"head-dim", "load"}, {"seed", "load"},     {"inputs", "load"}, {"csv", "watch"},
                                        {"save", "trace"},    {"save", "watch"},     {"device", "rendezvous"}};

static int is_given(char **argv, const char *name) {
    while (*argv && !is_named(*argv, name))
        argv++;
    return *argv != NULL;
}

Options options_parse(const Stage *stage, int argc, char **argv) {
    Options o = {.stage = stage, .device = -1, .validate = 1, .roofline = "h200", .problem_count = 1};
    flush_output();
    for (int i = 1; i < argc; i++) {
        Option option = find_option(stage, argv[i]);
        const char *equals = strchr(argv[i], '='), *text = equals ? equals + 1 : NULL;
        if (!option.value && text)
            cannot_run("%s: takes no value", argv[i]);
        if (option.value && !text)
            text = argv[++i];
        if (option.value && (!text || !*text))
            cannot_run("--%s: its value is missing", option.is.name);
        option.parse(&o, &option, text);
    }
    for (size_t i = 0; i < sizeof EITHER / sizeof *EITHER; i++)
        if (is_given(argv, EITHER[i][0]) && is_given(argv, EITHER[i][1]))
            cannot_run("--%s and --%s: choose one", EITHER[i][0], EITHER[i][1]);
    if (!stage->variants->name)
        o.variant = NAIVE; /* 00_naive: there is only one */
    if (o.save && !o.variant)
        cannot_run("--save %s: choose the variant to save with --variant", o.save);
    for (int i = 0; i < AXES; i++) {
        int count = o.axes[i].count ? o.axes[i].count : 1;
        if (count > 1000000 / o.problem_count)
            cannot_run("these values make more than a million problems: choose fewer");
        o.problem_count *= count;
    }
    if (o.problem_count > 1 && (o.save || o.save_inputs || o.watch || (o.trace && o.format)))
        cannot_run(
            "--save, --save-inputs, --watch, --trace --json: choose one value per option, since these make %d problems",
            o.problem_count);
    o.trace |= o.watch != NULL;
    if (!o.trace && is_given(argv, "roofline"))
        cannot_run("--roofline: add --trace or --watch, which it belongs to");
    if (!find_chip(o.roofline))
        cannot_run("--roofline %s: choose " CHIP_NAMES, o.roofline);
    return o;
}

void options_free(Options *o) {
    for (int i = 0; i < AXES; i++)
        free(o->axes[i].values);
    free(o->lengths.values);
    free(o->key_lengths);
    for (int i = 0; i < MAX_SETTINGS; i++)
        free(o->texts[i]);
    free((void *)o->problem.blocks), free((void *)o->problem.score);
}
