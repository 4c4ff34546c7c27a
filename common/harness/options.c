/* options.c - see options.h. */
#include "options.h"

#include "../host/memory.h"
#include "../host/errors.h"
#include "../trace/roofline.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SCALE 1e6
#define MAX_ITERS 1000000
#define MAX_PROBLEMS 1000000

/* An option: what it takes, as the options of a stage say it (stage.h), what reads it, and where that leaves it. */
typedef struct Option Option;
typedef void Parser(Options *o, const Option *option, const char *text);
struct Option {
    Setting is;
    const char *value; /* what --help calls its value; NULL: a flag */
    Parser *parse;
    size_t field;       /* of Options; with set_axis: of Problem */
    const char *absent; /* for --help: what holds without it */
};

/* ---- parsers ---- */

/* A whole number in plain digits, nothing before or after it. Returns 0 if `text` is not one or passes `max`. */
static int parse_whole(const char *text, uint64_t max, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return isdigit((unsigned char)*text) && *end == '\0' && errno == 0 && *value <= max;
}

/* "tensor or block": what a message offers. */
static void list_choices(const Setting *setting, char *list, size_t size) {
    const char *last = setting->choices ? strrchr(setting->choices, '|') : NULL;
    size_t used = 0;
    for (const char *c = setting->choices ? setting->choices : ""; *c && used + 5 < size; c++)
        used += (size_t)(*c == '|' ? snprintf(list + used, size - used, "%s", c == last && !setting->max ? " or " : ", ")
                                   : snprintf(list + used, size - used, "%c", *c));
    if (setting->max)
        snprintf(list + used, size - used, "%sa whole number from 1 to %d", used ? " or " : "", setting->max);
}

/* What `item` of the option's text stands for: the number of a choice, or a whole number. */
static int value_of(const Option *option, const char *item, const char *text) {
    int number = 0;
    for (const char *choice = option->is.choices; choice; number++) {
        size_t length = strcspn(choice, "|");
        if (strlen(item) == length && strncmp(choice, item, length) == 0)
            return number;
        choice = choice[length] ? choice + length + 1 : NULL;
    }
    uint64_t value;
    if (option->is.max && parse_whole(item, (uint64_t)option->is.max, &value) && value > 0)
        return (int)value;
    char list[160] = "";
    list_choices(&option->is, list, sizeof list);
    cannot_run("--%s %s: choose %s", option->is.name, text, list);
}

/* "a,b,c" */
static void read_list(List *list, const Option *option, const char *text) {
    char *copy = host_alloc(strlen(text) + 1, 1);
    strcpy(copy, text);
    free(list->values);
    *list = (List){host_alloc(strlen(text) / 2 + 1, sizeof(int)), 0};
    for (char *item = copy, *next; item; item = next) {
        next = strchr(item, ',');
        if (next)
            *next++ = '\0';
        list->values[list->count++] = value_of(option, item, text);
    }
    free(copy);
}

void options_give(Options *o, size_t field, int value) {
    List *list = &o->axes[field / sizeof(int)];
    free(list->values);
    *list = (List){host_alloc(1, sizeof(int)), 1};
    list->values[0] = value;
}

static void set_axis(Options *o, const Option *option, const char *text) {
    if (text)
        read_list(&o->axes[option->field / sizeof(int)], option, text);
    else
        options_give(o, option->field, 1);
}

static void set_lengths(Options *o, const Option *option, const char *text) { read_list(&o->lengths, option, text); }

static void set_int(Options *o, const Option *option, const char *text) {
    *(int *)((char *)o + option->field) = text ? value_of(option, text, text) : 1;
}

static void set_no_validate(Options *o, const Option *option, const char *text) {
    (void)option, (void)text;
    o->validate = 0;
}

static void set_scale(Options *o, const Option *option, const char *text) {
    char *end;
    o->scale = strtof(text, &end);
    int starts_well = isdigit((unsigned char)*text) || *text == '.';
    if (!starts_well || *end != '\0' || !(o->scale > 0 && o->scale <= MAX_SCALE))
        cannot_run("--%s %s: choose a number above 0, up to 1e6", option->is.name, text);
}

static void set_seed(Options *o, const Option *option, const char *text) {
    if (!parse_whole(text, UINT64_MAX, &o->seed))
        cannot_run("--%s %s: choose a whole number from 0 to 2^64 - 1", option->is.name, text);
}

static void set_device(Options *o, const Option *option, const char *text) {
    uint64_t number;
    if (!parse_whole(text, INT_MAX, &number))
        cannot_run("--%s %s: choose a whole number from 0 on: which GPU", option->is.name, text);
    o->device = (int)number;
}

static void set_folder(Options *o, const Option *option, const char *text) {
    if (!*text)
        cannot_run("--%s: choose a folder", option->is.name);
    *(const char **)((char *)o + option->field) = text;
}

#ifdef TRACE
static void set_watch(Options *o, const Option *option, const char *text) {
    if (!*text)
        cannot_run("--%s: choose a file", option->is.name);
    o->watch = text;
    o->trace = 1;
}
#endif

static void set_chip(Options *o, const Option *option, const char *text) {
    o->roofline = CHIPS[value_of(option, text, text)].name;
}

static void set_format(Options *o, const Option *option, const char *text) {
    (void)text;
    o->format = strcmp(option->is.name, "csv") == 0 ? FORMAT_CSV : FORMAT_JSON;
}

/* "mma", "01_tiled/mma", or "00_naive". */
static void set_variant(Options *o, const Option *option, const char *text) {
    size_t prefix = strlen(o->stage->name);
    const char *name = strncmp(text, o->stage->name, prefix) == 0 && text[prefix] == '/' ? text + prefix + 1 : text;
    char choices[256] = "";
    o->variant = strcmp(text, NAIVE) == 0 ? NAIVE : NULL;
    for (const Variant *v = o->stage->variants; v < o->stage->variants + MAX_VARIANTS && v->name; v++) {
        size_t used = strlen(choices);
        snprintf(choices + used, sizeof choices - used, "%s%s", used ? ", " : "", v->name);
        if (strcmp(name, v->name) == 0)
            o->variant = v->name;
    }
    if (!o->variant)
        cannot_run("--%s %s: choose %s%s" NAIVE, option->is.name, text, choices, *choices ? " or " : "");
}

static void set_trace(Options *o, const Option *option, const char *text) {
#ifndef TRACE
    cannot_run("--%s: this program is not built for it; make trace-%s builds and runs one", option->is.name, o->stage->name);
#endif
    set_int(o, option, text);
}

static Parser show_help;

/* ---- the options ---- */

/* An entry without a name is a heading of --help. */
/* clang-format off */
#define OF_PROBLEM(member) set_axis, offsetof(Problem, member)
#define OF_OPTIONS(member) offsetof(Options, member)
static const Option OPTIONS[] = {
    {{NULL, NULL, 0, "the problem"}, NULL, NULL, 0, "default on GPU, CPU"},
    {{"batch", NULL, MAX_BATCH, "problems of the same shape, computed together"}, "N", OF_PROBLEM(batch), NULL},
    {{"heads", NULL, MAX_HEADS, "query heads of each"}, "N", OF_PROBLEM(heads), NULL},
    {{"kv-heads", NULL, MAX_HEADS, "key/value heads, one for a group of query heads; must divide --heads"}, "N", OF_PROBLEM(kv_heads), "as --heads"},
    {{"seqlen", NULL, MAX_SEQLEN, "queries of a head, Sq"}, "N", OF_PROBLEM(seqlen_q), NULL},
    {{"seqlen-k", NULL, MAX_SEQLEN, "keys of a head, Sk"}, "N", OF_PROBLEM(seqlen_k), "as --seqlen"},
    {{"head-dim", NULL, MAX_HEAD_DIM, "D, numbers in a query, key or value: a multiple of 8 up to 256; see below"}, "N", OF_PROBLEM(head_dim), NULL},
    {{"dtype", "fp16|bf16|fp32", 0, "format of Q, K, V and O: fp16, bf16 or fp32"}, "T", OF_PROBLEM(dtype), "fp16"},
    {{"mask", "full|causal", 0, "full: a query sees all keys; or causal: see --causal"}, "M", OF_PROBLEM(causal), "full"},
    {{"causal", NULL, 0, "query i sees keys up to i + Sk - Sq; with --lengths: i + key length - Sq. The same as --mask causal"}, NULL, OF_PROBLEM(causal), NULL},
    {{"lengths", "0", MAX_SEQLEN, "existing keys of each batch entry: 17,0,256 (one run); one number is for all"}, "L", set_lengths, 0, "all"},
    {{"scale", NULL, 0, "what Q K^T is multiplied with"}, "X", set_scale, 0, "1/sqrt(head dim)"},
    {{"seed", NULL, 0, "a number that the random inputs follow from"}, "N", set_seed, 0, "0"},
    {{"inputs", "normal|outliers", 0, "normal: mean 0, variance 1; outliers: 1 in 1000 plus another of variance 100"}, "I", set_int, OF_OPTIONS(outliers), "normal"},
    {{"load", NULL, 0, "Shape, Q, K and V from DIR/q.npy, k.npy, v.npy: [batch, heads, seqlen, head_dim], fp16, fp32 or fp64"}, "DIR", set_folder, OF_OPTIONS(load), NULL},

    {{NULL, NULL, 0, "the run"}, NULL, NULL, 0, NULL},
    {{"variant", NULL, 0, "runs one of those listed below"}, "V", set_variant, 0, "all"},
    {{"device", NULL, 0, "which GPU, by its number"}, "N", set_device, 0, "0"},
    {{"iters", NULL, MAX_ITERS, "timed runs; latency is their median. Default: as many as fit into 100 ms"}, "N", set_int, OF_OPTIONS(iters), "5 to 100"},
    {{"warm", NULL, 0, "the L2 cache keeps what the run before left in it"}, NULL, set_int, OF_OPTIONS(warm), "emptied before"},
    {{"no-validate", NULL, 0, "compares nothing and runs no 00_naive: times only"}, NULL, set_no_validate, 0, NULL},
    {{"save", NULL, 0, "the --variant's O and LSE into DIR/o.npy and lse.npy; LSE is ln of each row's sum of e^S"}, "DIR", set_folder, OF_OPTIONS(save), NULL},
    {{"save-inputs", NULL, 0, "before the run, Q, K and V as it computes with them into DIR, in files that --load reads"}, "DIR", set_folder, OF_OPTIONS(save_inputs), NULL},
    {{"csv", NULL, 0, "prints the rows as comma-separated values, under a line of names"}, NULL, set_format, 0, NULL},
    {{"json", NULL, 0, "prints the rows as JSON, an object a line"}, NULL, set_format, 0, NULL},
    {{"trace", NULL, 0, "in place of times: memory traffic, bank conflicts and races; needs the program of make trace-STAGE"}, NULL, set_trace, OF_OPTIONS(trace), NULL},
#ifdef TRACE
    {{"watch", NULL, 0, "the same, and step by step as JSON: what make watch-STAGE makes a page of"}, "FILE", set_watch, 0, NULL},
#endif
    {{"roofline", CHIP_NAMES, 0, "with --trace, the chip to compare with: " CHIP_NAMES "; else h200"}, "C", set_chip, 0, NULL},
    {{"help", NULL, 0, "this text; or -h"}, NULL, show_help, 0, NULL},
};
/* clang-format on */
enum { COMMON_OPTIONS = sizeof OPTIONS / sizeof *OPTIONS };

/* Number i of the options that every stage has, and then of the stage's own, which go through the same parser. */
static Option option_at(const Stage *stage, int i) {
    if (i < COMMON_OPTIONS)
        return OPTIONS[i];
    const Setting *own = &stage->settings[i - COMMON_OPTIONS];
    size_t field = offsetof(Problem, settings) + (size_t)(own - stage->settings) * sizeof(int);
    return (Option){*own, own->choices || own->max ? "N" : NULL, set_axis, field, NULL};
}

static int is_shape(const Option *option) {
    return option->parse == set_axis && option->field <= offsetof(Problem, head_dim);
}

/* ---- --help ---- */

/* The shape where nothing is given. kv_heads 0: as heads; seqlen_k 0: as seqlen_q. */
static Problem default_shape(const Stage *stage, int is_cpu) {
    static const Problem OF_MOST[2] = {{.batch = 4, .heads = 16, .seqlen_q = 4096, .head_dim = 128},
                                       {.batch = 1, .heads = 2, .seqlen_q = 256, .head_dim = 64}};
    return stage->defaults[is_cpu].batch ? stage->defaults[is_cpu] : OF_MOST[is_cpu];
}

static int int_at(const Problem *p, size_t field) { return *(const int *)((const char *)p + field); }

static void help_option(const Stage *stage, const Option *option) {
    Problem gpu = default_shape(stage, 0), cpu = default_shape(stage, 1);
    char left[40] = "", absent[40] = "";
    if (option->is.name)
        snprintf(left, sizeof left, "  --%s %s", option->is.name, option->value ? option->value : "");
    if (is_shape(option) && int_at(&gpu, option->field))
        snprintf(absent, sizeof absent, "%d, %d", int_at(&gpu, option->field), int_at(&cpu, option->field));
    else if (option->absent)
        snprintf(absent, sizeof absent, "%s", option->absent);
    int indent = option->is.name ? 20 : 0;
    printf("%-*s%-*s%s\n", indent, left, *absent ? 99 - indent : 0, option->is.help, absent);
}

static void show_help(Options *o, const Option *option, const char *text) {
    (void)option, (void)text;
    const Stage *stage = o->stage;
    printf(
        "%s - %s\n\n"
        "usage: %s [options]\n\n"
        "Computes attention, S = scale Q K^T and O = softmax(S) V, with each variant, compares the result with that of 00_naive,\n"
        "and 00_naive's with one in double precision; times each and prints a table. Exit code: 0 all agree, 1 one does not,\n"
        "2 cannot run here, or cannot be checked. Shape, dtype, mask and a stage's own options take several values, as in\n"
        "--seqlen 512,1024 --head-dim 64,128: every combination runs, the option listed last below changes fastest, and each\n"
        "has a table of its own.\n\n",
        stage->name, stage->idea, stage->name);
    for (const Option *each = OPTIONS; each < OPTIONS + COMMON_OPTIONS; each++)
        help_option(stage, each);
    printf("\n"
           "TFLOP/s are 10^12 multiplications and additions a second, 4 D for each pair of a query and a key. Counted are\n"
           "batch * heads * Sq * Sk pairs, and half as many when causal; with --lengths those pairs that lengths and mask leave.\n"
           "GB/s%s are 10^9 bytes a second: K and V as far as keys exist, and Q, read once, O and LSE written once.\n",
           stage->kind == DECODING ? "" : " (in CSV and JSON)");
    if (stage->kind == BACKWARD)
        printf("The forward pass comes first. The backward pass counts 2.5 times its FLOPs, both together 3.5 times; bytes: Q, K, "
               "V,\n"
               "O, dO and LSE read once, dQ, dK and dV, the gradients, written once. --save writes dq.npy, dk.npy and dv.npy, "
               "too.\n"
               "--load reads and --save-inputs writes do.npy, too: dO, the gradient of the loss with respect to O, as q.npy in shape.\n");
    for (int i = 0; i < MAX_SETTINGS && stage->settings[i].name; i++) {
        const Setting *s = &stage->settings[i];
        char values[160] = "";
        list_choices(s, values, sizeof values);
        printf("%s  --%s%s%s\n                    %s\n", i ? "" : "\nthis stage's own\n", s->name, *values ? ": " : "",
               values, s->help);
    }
    printf("\nVariants take head dims 64 and 128, some take others; one that does not take a head dim or dtype says so in its row.\n"
           "\nvariants\n");
    for (const Variant *v = stage->variants; v < stage->variants + MAX_VARIANTS && v->name; v++)
        printf("  %-14s %s\n", v->name, v->idea);
    printf("  %-14s %s\n", NAIVE, "the definition; runs first, as the reference, unless --no-validate");
    flush_output();
    exit(0);
}

/* ---- the command line ---- */

/* The option that `word`, "--name" or "--name=value", begins with. */
static Option find_option(const Stage *stage, const char *word) {
    word = strcmp(word, "-h") == 0 ? "--help" : word;
    size_t length = strcspn(word, "=");
    if (strncmp(word, "--", 2) == 0)
        for (int i = 0; i < COMMON_OPTIONS + MAX_SETTINGS; i++) {
            Option option = option_at(stage, i);
            if (option.is.name && strlen(option.is.name) == length - 2 && strncmp(option.is.name, word + 2, length - 2) == 0)
                return option;
        }
    cannot_run("%s: %s, --help lists them", word, *word == '-' ? "no such option" : "not an option");
}

/* Of each pair one would be ignored. */
static const char *const EITHER[][2] = {{"causal", "mask"},   {"csv", "json"},      {"csv", "trace"},   {"batch", "load"},
                                        {"heads", "load"},    {"kv-heads", "load"}, {"seqlen", "load"}, {"seqlen-k", "load"},
                                        {"head-dim", "load"}, {"seed", "load"},     {"inputs", "load"}};

static int is_given(const char *const *given, const char *name) {
    while (*given && strcmp(*given, name) != 0)
        given++;
    return *given != NULL;
}

Options options_parse(const Stage *stage, int argc, char **argv) {
    const char **given = host_alloc((size_t)argc, sizeof *given); /* calloc: NULL at the end */
    int given_count = 0;
    Options o = {.stage = stage, .device = -1, .validate = 1, .roofline = "h200", .problem_count = 1};
    flush_output();
    for (int i = 1; i < argc; i++) {
        Option option = find_option(stage, argv[i]);
        const char *equals = strchr(argv[i], '='), *text = equals ? equals + 1 : NULL;
        if (!option.value && text)
            cannot_run("%s: takes no value", argv[i]);
        if (option.value && !text && !(text = argv[++i]))
            cannot_run("--%s: its value is missing", option.is.name);
        option.parse(&o, &option, text);
        given[given_count++] = option.is.name;
    }
    for (size_t i = 0; i < sizeof EITHER / sizeof *EITHER; i++)
        if (is_given(given, EITHER[i][0]) && is_given(given, EITHER[i][1]))
            cannot_run("--%s and --%s: choose one", EITHER[i][0], EITHER[i][1]);
    free(given);
    if (!stage->variants[0].name)
        o.variant = NAIVE; /* 00_naive: there is only one */
    if (o.save && !o.variant)
        cannot_run("--save %s: name the one to save with --variant", o.save);
    for (int i = 0; i < AXES; i++) {
        int count = o.axes[i].count ? o.axes[i].count : 1;
        if (count > MAX_PROBLEMS / o.problem_count)
            cannot_run("these values make more than %d problems: choose fewer", MAX_PROBLEMS);
        o.problem_count *= count;
    }
    if ((o.save || o.save_inputs) && o.problem_count > 1)
        cannot_run("--save%s %s: choose one value for each option, these make %d problems", o.save ? "" : "-inputs",
                   o.save ? o.save : o.save_inputs, o.problem_count);
    if (o.trace && o.format == FORMAT_JSON && o.problem_count > 1)
        cannot_run("--trace and --json: choose one value for each option, the rows do not say which problem they are of");
    if (o.watch && o.problem_count > 1)
        cannot_run("--watch %s: choose one value for each option, a page shows one problem", o.watch);
    return o;
}

/* ---- what the options say together ---- */

void options_select(Options *o, int index, int is_cpu) {
    Problem *p = &o->problem, other = default_shape(o->stage, is_cpu);
    o->selected = index;
    *p = (Problem){.scale = o->scale};
    for (int i = AXES; i-- > 0;)
        if (o->axes[i].count) {
            ((int *)p)[i] = o->axes[i].values[index % o->axes[i].count];
            index /= o->axes[i].count;
        }
    p->batch = p->batch ? p->batch : other.batch;
    p->kv_heads = p->kv_heads ? p->kv_heads : p->heads ? p->heads : other.kv_heads ? other.kv_heads : other.heads;
    p->heads = p->heads ? p->heads : other.heads;
    p->seqlen_k = p->seqlen_k ? p->seqlen_k : other.seqlen_k ? other.seqlen_k : p->seqlen_q ? p->seqlen_q : other.seqlen_q;
    p->seqlen_q = p->seqlen_q ? p->seqlen_q : other.seqlen_q;
    p->head_dim = p->head_dim ? p->head_dim : other.head_dim;
    p->scale = p->scale > 0 ? p->scale : 1 / sqrtf((float)p->head_dim);

    const char *source = o->load ? "--load" : "--head-dim";
    if (p->head_dim % 8 || p->head_dim > MAX_HEAD_DIM)
        cannot_run("%s: head dim %d, choose a multiple of 8 up to %d", source, p->head_dim, MAX_HEAD_DIM);
    if (p->heads % p->kv_heads)
        cannot_run("%s %d: choose a divisor of %d, the number of query heads",
                   o->load ? "--load: key/value heads" : "--kv-heads", p->kv_heads, p->heads);

    /* The kernels have one (batch, head) a block of their grid's y or z dimension. */
    if ((long)p->batch * p->heads > 65535)
        cannot_run("--batch %d times --heads %d: choose a product up to 65535", p->batch, p->heads);

    /* Q, K, V and O end below 2^55 elements by now. 2^58 of S keep every size in bytes inside 64 bits. */
    if ((double)p->batch * p->heads * p->seqlen_q * p->seqlen_k > 0x1p58)
        cannot_run("--batch %d, --heads %d, --seqlen %d, --seqlen-k %d: too large together for 64 bits",
                   p->batch, p->heads, p->seqlen_q, p->seqlen_k);

    free(o->key_lengths);
    o->key_lengths = NULL;
    if (!o->lengths.count)
        return;
    if (o->lengths.count != 1 && o->lengths.count != p->batch)
        cannot_run("--lengths: %d given, choose one for all batch entries or one for each of the %d", o->lengths.count,
                   p->batch);
    o->key_lengths = host_alloc((size_t)p->batch, sizeof *o->key_lengths);
    for (int b = 0; b < p->batch; b++) {
        o->key_lengths[b] = o->lengths.values[o->lengths.count == 1 ? 0 : b];
        if (o->key_lengths[b] > p->seqlen_k)
            cannot_run("--lengths: %d, choose key lengths from 0 to %d, the number of keys", o->key_lengths[b], p->seqlen_k);
    }
}

void options_free(Options *o) {
    for (int i = 0; i < AXES; i++)
        free(o->axes[i].values);
    free(o->lengths.values);
    free(o->key_lengths);
}
