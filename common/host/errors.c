/* errors.c - see errors.h. */
#define _POSIX_C_SOURCE 200809L
#include "errors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *program;

void program_is(const char *name) { program = name; }

#define ERASE "\r\033[K" /* back to the beginning of the line, and clear it */
static int is_shown;

void show_progress(const char *text, ...) {
    const char *terminal = getenv("TERM");
    if (!terminal || strcmp(terminal, "dumb") == 0 || !isatty(STDERR_FILENO))
        return;
    va_list arguments;
    va_start(arguments, text);
    fputs(ERASE, stderr);
    vfprintf(stderr, text, arguments);
    va_end(arguments);
    is_shown = 1;
}

void end_progress(void) {
    if (is_shown)
        fputs(ERASE, stderr);
    is_shown = 0;
}

void cannot_run(const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    end_progress();
    if (program)
        fprintf(stderr, "%s: ", program);
    vfprintf(stderr, text, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(2);
}

void flush_output(void) {
    if (fcntl(STDOUT_FILENO, F_GETFD) < 0)
        cannot_run("stdout is closed, nothing can be printed");
    if (fflush(stdout) != 0 || ferror(stdout))
        cannot_run("the output cannot be written: %s", strerror(errno));
}
