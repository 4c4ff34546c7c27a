/* score.c - reads --score SPEC into a score mod (problem.h). */
#include "../common/host/errors.h"
#include "../common/host/memory.h"
#include "../common/host/random.h"
#include "../common/stage.h"
#include "definition.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* SPEC while it is read. */
typedef struct {
    const char *option, *text, *at;
} Spec;

/* Whether the name is next; the reader is then behind it. */
static int is_next(Spec *s, const char *name) {
    size_t length = strlen(name);
    int is = strncmp(s->at, name, length) == 0;
    s->at += is ? length : 0;
    return is;
}

static float read_cap(Spec *s) {
    char *end;
    float cap = strtof(s->at, &end);
    if (!(isdigit((unsigned char)*s->at) || *s->at == '.') || s->at[1] == 'x' || !(cap >= 0.125f && cap <= 1000))
        cannot_run("--%s %s: choose a number from 0.125 to 1000 for C", s->option, s->text);
    s->at = end;
    return cap;
}

/* Keys on one side of a window. With the position, which is below MAX_SEQLEN, the sum stays an int. */
static int read_side(Spec *s, const char *what) {
    enum { MOST = MAX_SEQLEN / 2 };
    char *end;
    errno = 0;
    unsigned long long value = strtoull(s->at, &end, 10);
    if (!isdigit((unsigned char)*s->at) || errno || value > MOST)
        cannot_run("--%s %s: choose a whole number from 0 to %d for %s", s->option, s->text, MOST, what);
    s->at = end;
    return (int)value;
}

static void read_window(Spec *s, Score *score) {
    score->window = 1;
    score->left = read_side(s, "LEFT");
    if (!is_next(s, ","))
        cannot_run("--%s %s: choose two numbers for window:LEFT,RIGHT", s->option, s->text);
    score->right = read_side(s, "RIGHT");
}

/* A head's sink depends on its number alone, as a parameter of a model does: on no seed and no shape. */
enum { SINKS_STREAM = 8 };

/* The sinks and the text follow the score mod. */
extern ScoreReader score_read;
const ScoreMod *score_read(const char *option, const char *text, const Problem *p) {
    size_t sinks = (size_t)p->heads * sizeof(float);
    ScoreMod *mod = host_alloc(1, sizeof *mod + sinks + strlen(text) + 1);
    Score *score = &mod->score;
    float *drawn = (float *)(mod + 1);
    mod->text = strcpy((char *)drawn + sinks, text);
    Spec s = {option, text, text};
    do {
        if (!score->softcap && is_next(&s, "softcap:"))
            score->softcap = read_cap(&s);
        else if (!score->alibi && is_next(&s, "alibi"))
            score->alibi = 1;
        else if (!score->window && is_next(&s, "window:"))
            read_window(&s, score);
        else if (!score->sinks && is_next(&s, "sink"))
            score->sinks = drawn;
        else
            s.at = ".";
    } while (is_next(&s, "+"));
    if (*s.at)
        cannot_run("--%s %s: choose softcap:C|alibi|window:LEFT,RIGHT|sink, each once", option, text);
    define_score(mod);
    random_normal(DTYPE_FP32, drawn, (size_t)p->heads, 0, SINKS_STREAM, 0, 1);
    return mod;
}
