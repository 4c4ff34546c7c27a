/* command.h - runs a command and keeps what it said; and texts. */
#ifndef FA_COMMAND_H
#define FA_COMMAND_H

typedef struct {
    char *out;        /* stdout, whole */
    char reason[512]; /* the last line on stderr, without the program's name before it */
    int code;         /* exit code, */
    int signal;       /* and the signal that ended it, or 0 */
} Command;

/* Runs a line of shell, formatted as by printf. What it returns is kept until the program ends. */
__attribute__((format(printf, 1, 2))) Command command(const char *line, ...);

/* Formatted as by printf; a whole file. Both are kept until the program ends. */
__attribute__((format(printf, 1, 2))) char *text_of(const char *format, ...);
char *read_file(const char *path);

/* "04_fa2" of "build/cpu/04_fa2/04_fa2" */
const char *name_of(const char *path);

#endif
