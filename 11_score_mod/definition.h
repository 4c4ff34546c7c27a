/* definition.h - the score mod as its text defines it, for the judge (problem.h: ScoreMod). */
#ifndef DEFINITION_H
#define DEFINITION_H

#include "../common/problem.h"

/* `mod` has a text in which there is no mistake. */
void define_score(ScoreMod *mod);

#endif
