/* help.h - the text of --help. */
#ifndef FA_HELP_H
#define FA_HELP_H

#include "../stage.h"

/* What the program does, and its problem where nothing is asked for; an option and what its value is called (NULL: a flag), or a
 * heading, which has no name; what is counted, and the variants. */
void help_begins(const Stage *stage);
void help_option(const Setting *option, const char *value);
void help_ends(const Stage *stage);

/* What an option takes: "tensor|block", "auto or a whole number from 1 to 256". Good until the next call. */
const char *taken_by(const Setting *option);

#endif
