/* capture.h - what a function prints on stdout, as text.
 *
 *     char *text = captured(print_something, &context);      free(text)
 */
#ifndef FA_CAPTURE_H
#define FA_CAPTURE_H

#include "../common/host/allocation.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline char *captured(void (*print)(void *), void *context) {
    FILE *file = tmpfile();
    fflush(stdout);
    int terminal = dup(STDOUT_FILENO);
    if (!file || terminal < 0 || dup2(fileno(file), STDOUT_FILENO) < 0)
        abort();
    print(context);
    fflush(stdout);
    dup2(terminal, STDOUT_FILENO);
    close(terminal);
    long size = lseek(fileno(file), 0, SEEK_END);
    char *text = host_alloc((size_t)size + 1, 1); /* calloc */
    rewind(file);
    if (fread(text, 1, (size_t)size, file) != (size_t)size)
        abort();
    fclose(file);
    return text;
}

#endif
