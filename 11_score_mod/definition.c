/* definition.c - see definition.h. Written apart from score.c and common/score.h, and not for speed. */
#include "definition.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What follows the name in the text: its values, or what is left of the text; NULL: it does not have the name. */
static const char *values_of(const ScoreMod *mod, const char *name) {
    const char *at = strstr(mod->text, name);
    return at ? at + strlen(name) : NULL;
}

static int keeps(const ScoreMod *mod, int pos, int key) {
    const char *window = values_of(mod, "window:");
    return !window || (key <= pos ? pos - key <= atoi(window) : key - pos <= atoi(strchr(window, ',') + 1));
}

/* Press et al. 2022: a geometric sequence of n slopes, which starts at 2^(-8/n) and has that as its ratio. If n is no
 * power of two, that of the power of two below, and then every other slope of the power of two above, from the first
 * on. */
static double slope_of(int heads, int head) {
    int below = heads;
    while (below & (below - 1))
        below &= below - 1;
    return head < below ? pow(2, -8.0 / below * (head + 1)) : pow(2, -8.0 / (2 * below) * (1 + 2 * (head - below)));
}

static DefinedScore defines(const ScoreMod *mod, int heads, int head, int pos, int key, double s) {
    DefinedScore score = {s, 1};
    const char *cap = values_of(mod, "softcap:");
    if (cap) {
        double C = strtof(cap, NULL);
        score = (DefinedScore){C * tanh(s / C), pow(cosh(s / C), -2)};
    }
    if (values_of(mod, "alibi"))
        score.value -= slope_of(heads, head) * abs(pos - key);
    return score;
}

void define_score(ScoreMod *mod) { mod->keeps = keeps, mod->defines = defines; }
