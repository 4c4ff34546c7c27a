/* capture.h - what a function prints, as text, and a command line as main gets it.
 *
 *     char *text = captured(STDOUT_FILENO, print_something, &context);      free(text)
 *     char *text = said(end_the_program, &context);                         likewise
 */
#ifndef FA_CAPTURE_H
#define FA_CAPTURE_H

#include "../common/host/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* `descriptor`: STDOUT_FILENO or STDERR_FILENO. */
static inline char *captured(int descriptor, void (*print)(void *), void *context) {
    FILE *file = tmpfile();
    fflush(stdout);
    int terminal = dup(descriptor);
    if (!file || terminal < 0 || dup2(fileno(file), descriptor) < 0)
        abort();
    print(context);
    fflush(stdout);
    dup2(terminal, descriptor);
    close(terminal);
    long size = lseek(fileno(file), 0, SEEK_END);
    char *text = host_alloc((size_t)size + 1, 1); /* calloc */
    rewind(file);
    if (fread(text, 1, (size_t)size, file) != (size_t)size)
        abort();
    fclose(file);
    return text;
}

/* What a function says on stderr before it ends the program with exit code 2; "" if it does not. */
typedef struct {
    void (*function)(void *);
    void *context;
    int status;
} Ending;
static inline void end_in_child(void *context) {
    Ending *e = context;
    pid_t child = fork();
    if (child == 0) {
        e->function(e->context);
        exit(0);
    }
    waitpid(child, &e->status, 0);
}
static inline char *said(void (*function)(void *), void *context) {
    Ending e = {function, context, 0};
    char *text = captured(STDERR_FILENO, end_in_child, &e);
    if (!WIFEXITED(e.status) || WEXITSTATUS(e.status) != 2)
        *text = '\0';
    return text;
}

/* The words of `line`, which is cut up, behind the program's name. Returns argc. */
static inline int words_of(char *line, char *argv[], int most) {
    int count = 0;
    argv[count++] = "program";
    for (char *word = strtok(line, " "); word && count < most - 1; word = strtok(NULL, " "))
        argv[count++] = word;
    argv[count] = NULL;
    return count;
}

#endif
