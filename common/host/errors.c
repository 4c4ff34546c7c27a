/* errors.c - see errors.h. */
#define _POSIX_C_SOURCE 200809L
#include "errors.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *program;

void program_is(const char *name) { program = name; }

#define ERASE "\r\033[K" /* back to the beginning of the line, and clear it */
static char activity[120];
static int ticks; /* seconds that have ended since it began; from the second one on there is a line */
static pthread_mutex_t drawing = PTHREAD_MUTEX_INITIALIZER;

static void *draw_each_second(void *unused) {
    for (;; sleep(1)) {
        pthread_mutex_lock(&drawing);
        if (*activity && ++ticks > 1)
            fprintf(stderr, ERASE "%s %d s", activity, ticks - 1);
        pthread_mutex_unlock(&drawing);
    }
    return unused;
}

static void start_drawing(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, draw_each_second, NULL); /* without it nothing is shown */
}

void show_progress(const char *text, ...) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *terminal = getenv("TERM");
    if (!terminal || strcmp(terminal, "dumb") == 0 || !isatty(STDERR_FILENO))
        return;
    pthread_mutex_lock(&drawing);
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(activity, sizeof activity, text, arguments);
    va_end(arguments);
    pthread_once(&once, start_drawing);
    pthread_mutex_unlock(&drawing);
}

void end_progress(void) {
    pthread_mutex_lock(&drawing);
    if (ticks > 1)
        fputs(ERASE, stderr);
    *activity = 0, ticks = 0;
    pthread_mutex_unlock(&drawing);
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
