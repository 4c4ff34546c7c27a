/* text.c - what people read: lines of at most 120 places, figures, and a line of progress where a terminal
 * can overwrite it.
 */
#define _GNU_SOURCE
#include "../common/host/text.h"
#include "../common/host/errors.h"
#include "capture.h"
#include "tap.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#define TEN "012345678 "
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN

static void print(void *text) {
    for (const char *part = text; *part; part += strcspn(part, "|") + (strchr(part, '|') != NULL))
        print_text("%.*s", (int)strcspn(part, "|"), part); /* in pieces, as a table is printed */
}

static void prints(const char *text, const char *want, const char *name) {
    char *got = captured(STDOUT_FILENO, print, (void *)text);
    if (!ok(strcmp(got, want) == 0, "%s", name))
        diag("printed:\n%s\nexpected:\n%s", got, want);
    free(got);
}

static void test_lines(void) {
    prints("a|b\n|c\nd|\n", "ab\nc\nd\n", "pieces of lines");
    prints("\n\n", "\n\n", "empty lines");
    prints(HUNDRED TEN "012345678|9\n", HUNDRED TEN "0123456789\n", "120 places");
    prints(HUNDRED TEN "0123456789|0\n", HUNDRED "012345678\n           01234567890\n", "121: the last word goes on below");
    prints(HUNDRED TEN "0123456789| 1\n", HUNDRED TEN "0123456789\n           1\n", "a space at place 121 goes");
    prints(HUNDRED HUNDRED HUNDRED "end\n",
           HUNDRED TEN "012345678\n           " HUNDRED "012345678\n           " TEN TEN TEN TEN TEN TEN TEN "end\n",
           "more than twice");
    static char word[40000] = {[0 ... 39997] = 'w', '\n'};
    prints(word, word, "a word is not broken, however long");
}

static void test_append(void) {
    char text[12] = "one";
    memset(text + 8, '!', 4);
    append(text, 8, ", %d", 2);
    append(text, 8, ", %d", 34567);
    ok(memcmp(text, "one, 2,\0!!!!", 12) == 0, "a text is continued as far as there is room");
}

static void test_figures(void) {
    static const struct {
        double value;
        const char *want;
    } times[] = {{0.00012, "0.12 us"}, {0.99, "990 us"}, {1, "1.00 ms"},   {99.94, "99.9 ms"},
                 {999, "999 ms"},      {1000, "1.00 s"}, {12340, "12.3 s"}},
      sizes[] = {{0, "0"},
                 {1, "1 byte"},
                 {1023, "1023 bytes"},
                 {1024, "1.00 KiB"},
                 {0x1p20 - 1024, "1023 KiB"},
                 {0x1p20, "1.00 MiB"},
                 {0x1p30 - 0x1p20, "1023 MiB"},
                 {0x1p30, "1.00 GiB"}};
    Cell cell;
    int good = 1;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++, good &= strcmp(cell, times[i - 1].want) == 0)
        print_time(cell, times[i].value);
    ok(good, "times in us, ms and s");
    good = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++, good &= strcmp(cell, sizes[i - 1].want) == 0)
        print_bytes(cell, sizes[i].value);
    ok(good, "bytes in KiB, MiB and GiB");
}

/* ---- progress ---- */

static void two_steps(void) {
    show_progress("%s ...", "one");
    show_progress("%s ...", "two");
    end_progress();
    end_progress();
}
static void fails(void) {
    show_progress("%s ...", "one");
    program_is("it");
    cannot_run("cannot");
}

static void one_step(void *unused) {
    (void)unused;
    show_progress("%s ...", "one");
    end_progress();
}

/* What a terminal of so many columns gets of what a function prints to one of its two streams, with TERM=type. */
static const char *on_terminal(const char *type, int columns, int stream, void (*run)(void)) {
    static char text[1000];
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
        return NULL;
    int slave = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    struct winsize size_of = {.ws_row = 25, .ws_col = (unsigned short)columns};
    ioctl(slave, TIOCSWINSZ, &size_of);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(slave, stream);
        setenv("TERM", type, 1);
        run();
        exit(0);
    }
    waitpid(child, NULL, 0); /* what it says fits into the terminal's buffer */
    close(slave);
    size_t size = 0;
    for (ssize_t more; (more = read(terminal, text + size, sizeof text - 1 - size)) > 0;)
        size += (size_t)more;
    text[size] = 0;
    close(terminal);
    return text;
}

static void hang(void) { print_hanging(3, "%s", HUNDRED TEN TEN TEN); }
static void long_line(void) { print_text(HUNDRED "end\n"); }

static void test_widths(void) {
    static const struct {
        int columns;
        void (*run)(void);
        const char *want, *name;
    } cases[] = {
        {80, long_line, TEN TEN TEN TEN TEN TEN TEN "012345678\r\n           " TEN TEN "end\r\n",
         "a terminal of 80 columns"},
        {80, hang, TEN TEN TEN TEN TEN TEN TEN "012345678\r\n   " TEN TEN TEN TEN TEN "\r\n", "a line that hangs by three"},
        {200, hang, HUNDRED TEN "012345678\r\n   " TEN "\r\n", "a wide one: 120"},
        {0, hang, HUNDRED TEN "012345678\r\n   " TEN "\r\n", "one that does not say: 120"},
        {9, long_line,
         TEN TEN TEN "012345678\r\n           " TEN TEN "012345678\r\n           " TEN TEN "012345678\r\n           end\r\n",
         "never fewer than 40"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = on_terminal("xterm", cases[i].columns, STDOUT_FILENO, cases[i].run);
        if (!got)
            ok(1, "# SKIP there is no terminal to be had");
        else if (!ok(strcmp(got, cases[i].want) == 0, "lines: %s", cases[i].name))
            diag("got %s", got);
    }
}

static void test_progress(void) {
    static const struct {
        const char *type;
        void (*run)(void);
        const char *want, *name;
    } cases[] = {
        {"xterm", two_steps, "\r\033[Kone ...\r\033[Ktwo ...\r\033[K", "progress: a line, drawn anew, and wiped off once"},
        {"xterm", fails, "\r\033[Kone ...\r\033[Kit: cannot\r\n", "a message takes its place, and ends in a newline"},
        {"dumb", fails, "it: cannot\r\n", "TERM=dumb: the message alone"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = on_terminal(cases[i].type, 80, STDERR_FILENO, cases[i].run);
        if (!got)
            ok(1, "# SKIP there is no terminal to be had");
        else if (!ok(strcmp(got, cases[i].want) == 0, "%s", cases[i].name))
            diag("got %s", got);
    }
    setenv("TERM", "xterm", 1);
    char *text = captured(STDERR_FILENO, one_step, NULL);
    ok(!*text, "stderr is not a terminal: none");
    free(text);
}

int main(void) {
    test_lines();
    test_append();
    test_figures();
    test_widths();
    test_progress();
    return tap_done();
}
