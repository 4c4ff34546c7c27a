/* npy.c - see npy.h.
 *
 * A .npy file: the six bytes "\x93NUMPY", the version's major and minor number, the header's length (little-endian, 2 bytes
 * in version 1, 4 in versions 2 and 3), the header, the data. The header is a Python dictionary in text form,
 *
 *     {'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 256, 64), }
 *
 * padded with spaces and ended by a newline so that the data starts at a multiple of 64 bytes. Its three keys may come in
 * any order and with any spacing. (NumPy Enhancement Proposal 1.)
 */
#define _POSIX_C_SOURCE 200809L

#include "npy.h"

#include "../numeric.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HEADER = 1 << 16 }; /* three keys need about a hundred bytes; more than this is not a header */

static char message[512];

/* The sentence the caller gets: the path, then what is wrong. */
__attribute__((format(printf, 2, 3))) static const char *failure(const char *path, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int used = snprintf(message, sizeof message, "%.300s: ", path);
    vsnprintf(message + used, sizeof message - used, format, arguments);
    va_end(arguments);
    return message;
}

/* ---- reading ---- */

static const char *skip_spaces(const char *text) { return text + strspn(text, " \t\n"); }

/* If `*text`, after spaces, goes on with `token`, moves past it and returns 1. */
static int accept(const char **text, const char *token) {
    const char *at = skip_spaces(*text);
    if (strncmp(at, token, strlen(token)) != 0)
        return 0;
    *text = at + strlen(token);
    return 1;
}

/* 'name' or "name", at most size - 1 characters. */
static int accept_string(const char **text, char *name, size_t size) {
    const char *at = skip_spaces(*text);
    char quote = *at;
    if (quote != '\'' && quote != '"')
        return 0;
    const char *end = strchr(at + 1, quote);
    if (!end || (size_t)(end - at - 1) >= size)
        return 0;
    memcpy(name, at + 1, end - at - 1);
    name[end - at - 1] = 0;
    *text = end + 1;
    return 1;
}

/* A tuple of non-negative whole numbers, (2, 3) or (2,) or (). 0: not one; -1: a number beyond 64 bits. Counts on past
 * NPY_MAX_DIMS without storing, so that the caller can say how many there are. */
static int accept_shape(const char **text, Npy *out) {
    if (!accept(text, "("))
        return 0;
    for (out->dims = 0; !accept(text, ")"); out->dims++) {
        const char *at = skip_spaces(*text);
        if (*at < '0' || *at > '9')
            return 0;
        char *end;
        errno = 0;
        unsigned long long extent = strtoull(at, &end, 10);
        if (errno || extent > SIZE_MAX)
            return -1;
        if (out->dims < NPY_MAX_DIMS)
            out->shape[out->dims] = (size_t)extent;
        *text = end + (*end == 'L'); /* Python 2 wrote 256L */
        if (!accept(text, ",") && *skip_spaces(*text) != ')')
            return 0;
    }
    return 1;
}

/* Fills in everything but the data from the header's text. */
static const char *parse_header(const char *path, const char *text, Npy *out) {
    char key[32], descr[32] = "";
    int fortran_order = -1, have_shape = 0;

    if (!accept(&text, "{"))
        return failure(path, "the header is not a Python dictionary");
    while (!accept(&text, "}")) {
        if (!accept_string(&text, key, sizeof key) || !accept(&text, ":"))
            return failure(path, "the header is not a Python dictionary with names as keys");
        int understood = 0;
        if (strcmp(key, "descr") == 0) {
            if (*skip_spaces(text) == '[')
                return failure(path, "holds records of several fields; needed are plain floats, '<f2', '<f4' or '<f8'");
            understood = accept_string(&text, descr, sizeof descr);
        } else if (strcmp(key, "fortran_order") == 0) {
            fortran_order = accept(&text, "True");
            understood = fortran_order || accept(&text, "False");
        } else if (strcmp(key, "shape") == 0) {
            have_shape = accept_shape(&text, out);
            if (have_shape < 0)
                return failure(path, "a dimension does not fit 64 bits");
            understood = have_shape;
        }
        if (!understood || (!accept(&text, ",") && *skip_spaces(text) != '}'))
            return failure(path, "cannot read the header's '%s'", key);
    }
    if (*skip_spaces(text))
        return failure(path, "the header goes on after its closing brace");
    if (!descr[0] || fortran_order < 0 || !have_shape)
        return failure(path, "the header lacks one of 'descr', 'fortran_order' and 'shape'");

    if (descr[0] == '>')
        return failure(path, "is big-endian ('%s'); needed is little-endian, '<f2', '<f4' or '<f8'", descr);
    out->element_bytes = strcmp(descr, "<f2") == 0 ? 2 : strcmp(descr, "<f4") == 0 ? 4 : strcmp(descr, "<f8") == 0 ? 8 : 0;
    if (strcmp(descr + 1, "V2") == 0)
        return failure(path, "holds '%s', as NumPy writes bf16: save it widened to float32, and choose --dtype bf16", descr);
    if (!out->element_bytes)
        return failure(path, "holds elements of type '%s'; needed are floats, '<f2', '<f4' or '<f8'", descr);
    if (fortran_order)
        return failure(path, "is in Fortran order; needed is C order (numpy.ascontiguousarray)");
    if (out->dims < 1 || out->dims > NPY_MAX_DIMS)
        return failure(path, "has %d dimensions; 1 to %d are possible", out->dims, NPY_MAX_DIMS);

    size_t limit = (SIZE_MAX >> 1) / out->element_bytes;
    out->count = 1;
    for (int i = 0; i < out->dims; i++) {
        if (out->shape[i] == 0)
            return failure(path, "is empty: dimension %d has extent 0", i);
        if (out->count > limit / out->shape[i])
            return failure(path, "its shape stands for more bytes than an address can count");
        out->count *= out->shape[i];
    }
    return NULL;
}

static const char *read_header(const char *path, FILE *file, Npy *out) {
    unsigned char start[12];
    if (fread(start, 1, 8, file) != 8 || memcmp(start, "\x93NUMPY", 6) != 0)
        return failure(path, ferror(file) ? "cannot be read" : "is not a .npy file");
    int major = start[6], length_bytes = major == 1 ? 2 : 4;
    if (major < 1 || major > 3)
        return failure(path, "is of .npy version %d; known are 1, 2 and 3", major);
    if (fread(start + 8, 1, length_bytes, file) != (size_t)length_bytes)
        return failure(path, "ends within its header");
    size_t length = 0;
    for (int i = 0; i < length_bytes; i++)
        length |= (size_t)start[8 + i] << (8 * i);
    if (length > MAX_HEADER)
        return failure(path, "claims a header of %zu bytes, which cannot be", length);

    char *text = calloc(length + 1, 1);
    if (!text)
        return failure(path, "out of memory");
    const char *error;
    if (fread(text, 1, length, file) != length)
        error = failure(path, "ends within its header");
    else if (strlen(text) != length)
        error = failure(path, "has a zero byte in its header");
    else
        error = parse_header(path, text, out);
    free(text);
    return error;
}

/* A header can claim anything: the file must be as long as it says. */
static const char *check_size(const char *path, FILE *file, size_t file_bytes, const Npy *npy) {
    size_t bytes = npy->count * npy->element_bytes, present = file_bytes - (size_t)ftello(file);
    return present == bytes ? NULL : failure(path, "holds %zu bytes of data where its shape asks for %zu", present, bytes);
}

static const char *read_data(const char *path, FILE *file, Npy *out) {
    size_t bytes = out->count * out->element_bytes;
    if (!(out->data = malloc(bytes)))
        return failure(path, "out of memory: %zu bytes are needed", bytes);
    if (fread(out->data, 1, bytes, file) != bytes)
        return failure(path, "cannot be read");
    return NULL;
}

static const char *read_file(const char *path, Npy *out, int with_data) {
    *out = (Npy){0};
    struct stat about; /* before it is opened: to open a pipe is to wait for who writes it */
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return failure(path, "must be a regular file");
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &about) != 0)
        return failure(path, "%s", strerror(errno));
    const char *error = read_header(path, file, out);
    if (!error)
        error = check_size(path, file, (size_t)about.st_size, out);
    if (!error && with_data)
        error = read_data(path, file, out);
    fclose(file);
    if (error)
        npy_free(out);
    return error;
}

const char *npy_read(const char *path, Npy *out) { return read_file(path, out, 1); }
const char *npy_read_header(const char *path, Npy *out) { return read_file(path, out, 0); }

void npy_free(Npy *npy) {
    free(npy->data);
    *npy = (Npy){0};
}

double npy_get(const Npy *npy, size_t i) {
    if (npy->element_bytes == 8)
        return ((const double *)npy->data)[i];
    return dtype_to_double(npy->element_bytes == 2 ? DTYPE_FP16 : DTYPE_FP32, npy->data, i);
}

/* ---- writing ---- */

static int write_header(FILE *file, Dtype dtype, int dims, const size_t *shape) {
    char text[256];
    int used = sprintf(text, "{'descr': '<f%d', 'fortran_order': False, 'shape': (", dtype == DTYPE_FP16 ? 2 : 4);
    for (int i = 0; i < dims; i++)
        used += sprintf(text + used, "%zu%s", shape[i], i + 1 < dims ? ", " : dims == 1 ? "," : "");
    used += sprintf(text + used, "), }");

    /* 10 bytes stand before the text; spaces and a newline fill up to a multiple of 64. */
    int length = (10 + used + 1 + 63) / 64 * 64 - 10;
    unsigned char start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, length & 0xff, length >> 8};
    return fwrite(start, 1, 10, file) == 10 && fprintf(file, "%-*s\n", length - 1, text) == length;
}

static int write_data(FILE *file, Dtype dtype, size_t count, const void *data) {
    if (dtype != DTYPE_BF16)
        return fwrite(data, dtype_bytes(dtype), count, file) == count;
    float widened[4096];
    for (size_t done = 0; done < count;) {
        size_t n = count - done < 4096 ? count - done : 4096;
        for (size_t i = 0; i < n; i++)
            widened[i] = bf16_to_float(((const uint16_t *)data)[done + i]);
        if (fwrite(widened, sizeof(float), n, file) != n)
            return 0;
        done += n;
    }
    return 1;
}

/* What npy_write is about. `fresh` and `old` are the names of a file before it has its own, and of the one that it replaces. */
static struct {
    const char *path;
    char fresh[4200], old[4200]; /* longer than a path can be: fopen refuses what does not fit */
    enum { UNTOUCHED, ADDED, REPLACED } change;
} saves[NPY_MAX_FILES];
static int save_count, all_are_there;

/* Leaves the new files, if all are there, or else those of before, and nothing beside them. A handler of signals may call it. */
static void clean_up(void) {
    for (int i = 0; i < save_count; i++) {
        unlink(saves[i].fresh);
        if (all_are_there)
            unlink(saves[i].old);
        else if (saves[i].change == REPLACED)
            rename(saves[i].old, saves[i].path);
        else if (saves[i].change == ADDED)
            unlink(saves[i].path);
    }
}

static void end_by(int number) {
    clean_up();
    signal(number, SIG_DFL);
    raise(number);
}

static int write_fresh(const NpyFile *f) {
    int i = save_count;
    saves[i].path = f->path;
    saves[i].change = UNTOUCHED;
    snprintf(saves[i].fresh, sizeof saves[i].fresh, "%s.%ld.new", f->path, (long)getpid());
    snprintf(saves[i].old, sizeof saves[i].old, "%s.%ld.old", f->path, (long)getpid());
    save_count++;
    FILE *file = fopen(saves[i].fresh, "wbx"); /* x: never write into a file that is there already */
    if (!file)
        return 0;
    size_t count = 1;
    for (int d = 0; d < f->dims; d++)
        count *= f->shape[d];
    /* A full disk may show as late as in fflush, fsync or fclose, so their answers count too. */
    int written = write_header(file, f->dtype, f->dims, f->shape) && write_data(file, f->dtype, count, f->data) &&
                  fflush(file) == 0 && fsync(fileno(file)) == 0;
    return fclose(file) == 0 && written;
}

static int put_in_place(int i) {
    struct stat about;
    int is_there = lstat(saves[i].path, &about) == 0;
    if (is_there && S_ISDIR(about.st_mode)) {
        errno = EISDIR;
        return 0;
    }
    saves[i].change = is_there ? REPLACED : ADDED;
    return (!is_there || rename(saves[i].path, saves[i].old) == 0) && rename(saves[i].fresh, saves[i].path) == 0;
}

const char *npy_write(const NpyFile *files, int count) {
    static const int SIGNALS[] = {SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    enum { SIGNAL_COUNT = sizeof SIGNALS / sizeof *SIGNALS };
    void (*before[SIGNAL_COUNT])(int);
    const char *error = NULL;
    save_count = all_are_there = 0;
    for (int i = 0; i < SIGNAL_COUNT; i++)
        if ((before[i] = signal(SIGNALS[i], end_by)) == SIG_IGN)
            signal(SIGNALS[i], SIG_IGN);
    for (int i = 0; i < 2 * count && !error; i++) /* all are written before the first gets its name */
        if (!(i < count ? write_fresh(&files[i]) : put_in_place(i - count)))
            error = failure(files[i % count].path, "cannot be written: %s", strerror(errno));
    all_are_there = !error;
    clean_up();
    for (int i = 0; i < SIGNAL_COUNT; i++)
        signal(SIGNALS[i], before[i]);
    return error;
}
