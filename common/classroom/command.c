/* command.c - see command.h. */
#define _POSIX_C_SOURCE 200809L
#include "command.h"

#include "../host/errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* All of a file from its beginning on; ends with a 0. */
static char *whole(FILE *file) {
    size_t size = 0, space = 1 << 16;
    char *text = malloc(space);
    while (text && (size += fread(text + size, 1, space - size, file)) == space)
        text = realloc(text, space *= 2);
    if (!text)
        cannot_run("out of memory");
    text[size] = 0;
    return text;
}

char *text_of(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t bytes = (size_t)vsnprintf(NULL, 0, format, arguments) + 1;
    va_end(arguments);
    char *text = malloc(bytes);
    if (!text)
        cannot_run("out of memory");
    va_start(arguments, format);
    vsnprintf(text, bytes, format, arguments);
    va_end(arguments);
    return text;
}

char *read_file(const char *path) {
    FILE *in = fopen(path, "rb");
    if (!in)
        cannot_run("%s cannot be read", path);
    char *text = whole(in);
    fclose(in);
    return text;
}

Command command(const char *line, ...) {
    char words[8192], redirected[sizeof words + 64];
    va_list arguments;
    va_start(arguments, line);
    if (vsnprintf(words, sizeof words, line, arguments) >= (int)sizeof words)
        cannot_run("%.40s...: the command is too long", words);
    va_end(arguments);

    FILE *errors = tmpfile();
    if (!errors)
        cannot_run("no place for a temporary file");
    snprintf(redirected, sizeof redirected, "exec 2>&%d </dev/null; %s", fileno(errors), words);
    flush_output();
    FILE *output = popen(redirected, "r");
    if (!output)
        cannot_run("no shell can be started");
    Command c = {.out = whole(output)};
    int status = pclose(output);
    c.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    c.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

    rewind(errors);
    for (char *save, *text = strtok_r(whole(errors), "\n", &save); text; text = strtok_r(NULL, "\n", &save))
        snprintf(c.reason, sizeof c.reason, "%s", text);
    fclose(errors);
    size_t name = strcspn(c.reason, ": ");
    if (strncmp(c.reason + name, ": ", 2) == 0)
        memmove(c.reason, c.reason + name + 2, strlen(c.reason + name + 2) + 1);
    return c;
}

const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
