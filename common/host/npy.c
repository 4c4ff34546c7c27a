/* npy.c - see npy.h.
 *
 * A .npy file: the six bytes "\x93NUMPY", the version's major and minor number, the header's length (little-endian, 2 bytes
 * in version 1, 4 in versions 2 and 3), the header, the data. The header is a Python dictionary in text form,
 *
 *     {'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 256, 64), }
 *
 * padded with spaces and ended by a newline so that the data starts at a multiple of 64 bytes. (NumPy Enhancement Proposal 1.)
 */
#define _POSIX_C_SOURCE 200809L

#include "npy.h"

#include "../numeric.h"
#include "errors.h"
#include "memory.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* More than a path can have: the system refuses what does not fit. */
enum { PATH_SIZE = 5000 };

static size_t element_bytes(ArrayType type) { return type == ARRAY_FP64 ? 8 : type == ARRAY_BOOL ? 1 : dtype_bytes((Dtype)type); }
size_t array_count(const HostArray *array) {
    size_t count = 1;
    for (int i = 0; i < array->dims; i++)
        count *= array->shape[i];
    return count;
}
size_t array_bytes(const HostArray *array) { return array_count(array) * element_bytes(array->type); }

/* ---- reading: `at`, "--load: folder/q.npy", is what a message begins with ---- */

/* What stands behind a key of the header. */
static const char *value_of(const char *at, const char *header, const char *key) {
    const char *value = strstr(header, key);
    if (!value)
        cannot_run("%s: its header lacks %s", at, key);
    value += strlen(key);
    return value + strspn(value, " :");
}

static HostArray parse_header(const char *at, const char *header, int is_table) {
    HostArray array = {0};
    char type[16] = "";
    sscanf(value_of(at, header, "'descr'"), "%15[^,} ]", type);
    if (is_table && strcmp(type, "'|b1'") != 0)
        cannot_run("%s: holds elements of type %s; save booleans, '|b1'", at, type);
    if (strcmp(type, "'<V2'") == 0 || strcmp(type, "'|V2'") == 0)
        cannot_run("%s: holds %s, as NumPy writes bf16: save it widened to float32, and choose --dtype bf16", at, type);
    array.type = is_table                 ? ARRAY_BOOL
                 : !strcmp(type, "'<f2'") ? ARRAY_FP16
                 : !strcmp(type, "'<f4'") ? ARRAY_FP32
                                          : ARRAY_FP64;
    if (array.type == ARRAY_FP64 && strcmp(type, "'<f8'") != 0)
        cannot_run("%s: holds elements of type %s; save little-endian floats, '<f2', '<f4', or '<f8'", at, type);
    if (strncmp(value_of(at, header, "'fortran_order'"), "False", 5) != 0)
        cannot_run("%s: is in Fortran order; save it in C order (numpy.ascontiguousarray)", at);

    const char *shape = value_of(at, header, "'shape'") + 1; /* behind the parenthesis */
    for (char *end; isdigit((unsigned char)*shape); shape = end + strspn(end, ", ")) {
        size_t extent = strtoull(shape, &end, 10);
        if (array.dims < 4)
            array.shape[array.dims] = extent;
        array.dims++;
    }
    if (*shape != ')')
        cannot_run("%s: its header's shape cannot be read", at);
    if (array.dims != (is_table ? 2 : 4))
        cannot_run("%s: has %d dimensions; %s", at, array.dims,
                   is_table ? "it needs 2: [query blocks, key blocks]"
                            : "it needs 4: [batch, heads, seqlen, head_dim]");
    return array;
}

static HostArray read_file(const char *option, const char *path, int is_table, int with_data) {
    char at[PATH_SIZE + 20], start[1 << 16]; /* three keys need about a hundred bytes */
    snprintf(at, sizeof at, "--%s: %s", option, path);
    struct stat about; /* before it is opened: to open a pipe is to wait for who writes it */
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        cannot_run("%s: must be a regular file", at);
    FILE *file = fopen(path, "rb");
    if (!file)
        cannot_run("%s: %s", at, strerror(errno));
    size_t present = fread(start, 1, sizeof start - 1, file);
    if (present < 12 || memcmp(start, "\x93NUMPY", 6) != 0 || start[6] < 1 || start[6] > 3)
        cannot_run("%s: is not a .npy file of version 1, 2 or 3", at);
    size_t begin = start[6] == 1 ? 10 : 12, length = 0;
    for (size_t i = begin; i-- > 8;)
        length = length << 8 | (unsigned char)start[i];
    if (length > present - begin)
        cannot_run("%s: ends within its header", at);
    start[begin + length] = '\0';
    HostArray array = parse_header(at, start + begin, is_table);

    /* A header can claim anything: the file must be as long as it says. As doubles no product is too large. */
    double bytes = (double)element_bytes(array.type), there = (double)about.st_size - (double)(begin + length);
    for (int i = 0; i < array.dims; i++)
        bytes *= (double)array.shape[i];
    if (there != bytes)
        cannot_run("%s: holds %.0f bytes of data, but its shape needs %.0f", at, there, bytes);
    if (with_data) {
        array.data = host_alloc(array_count(&array), element_bytes(array.type));
        fseek(file, (long)(begin + length), SEEK_SET);
        if (fread(array.data, 1, array_bytes(&array), file) != array_bytes(&array))
            cannot_run("%s: cannot be read", at);
    }
    fclose(file);
    return array;
}

HostArray npy_read(const char *option, const char *folder, const char *name, int with_data) {
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return read_file(option, path, 0, with_data);
}
HostArray npy_read_table(const char *option, const char *path) { return read_file(option, path, 1, 1); }

double npy_get(const HostArray *array, size_t i) {
    return array->type == ARRAY_FP64 ? ((const double *)array->data)[i] : dtype_to_double((Dtype)array->type, array->data, i);
}

/* ---- writing ---- */

static int write_header(FILE *file, const HostArray *f) {
    char text[256];
    int used = sprintf(text, "{'descr': '<f%d', 'fortran_order': False, 'shape': (", f->type == ARRAY_FP16 ? 2 : 4);
    for (int i = 0; i < f->dims; i++)
        used += sprintf(text + used, "%zu%s", f->shape[i], i + 1 < f->dims ? ", " : f->dims == 1 ? "," : "");
    sprintf(text + used, "), }");

    /* Spaces and a newline fill up to byte 128: no four extents of a file are too long for that. */
    static const char start[10] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, 118, 0};
    return fwrite(start, 1, 10, file) == 10 && fprintf(file, "%-117s\n", text) == start[8];
}

static int write_data(FILE *file, const HostArray *f) {
    if (f->type != ARRAY_BF16)
        return fwrite(f->data, 1, array_bytes(f), file) == array_bytes(f);
    for (size_t i = 0; i < array_count(f); i++) {
        float widened = bf16_to_float(((const uint16_t *)f->data)[i]);
        if (fwrite(&widened, sizeof widened, 1, file) != 1)
            return 0;
    }
    return 1;
}

/* The names of a file: its own, one before it has that, and one for what it replaces. */
typedef struct {
    char own[PATH_SIZE], fresh[PATH_SIZE + 40], old[PATH_SIZE + 40];
} Names;

static Names names_of(const char *folder, const HostArray *f) {
    Names n;
    snprintf(n.own, sizeof n.own, "%s/%s", folder, f->file);
    snprintf(n.fresh, sizeof n.fresh, "%s.%ld.new", n.own, (long)getpid());
    snprintf(n.old, sizeof n.old, "%s.%ld.old", n.own, (long)getpid());
    return n;
}

static int write_fresh(Names n, const HostArray *f) {
    FILE *file = fopen(n.fresh, "wbx"); /* x: never write into a file that is there already */
    /* A full disk may show as late as in fflush, fsync or fclose, so their answers count too. */
    int written = file && write_header(file, f) && write_data(file, f) && fflush(file) == 0 && fsync(fileno(file)) == 0;
    return file && fclose(file) == 0 && written;
}

static int put_in_place(Names n) {
    struct stat about;
    if (lstat(n.own, &about) == 0 && S_ISDIR(about.st_mode)) {
        errno = EISDIR;
        return 0;
    }
    return (rename(n.own, n.old) == 0 || errno == ENOENT) && rename(n.fresh, n.own) == 0;
}

static volatile sig_atomic_t arrived; /* the last signal, or 0 */
static void note_signal(int number) { arrived = number; }

void npy_write(const char *option, const char *folder, const HostArray *arrays, int count) {
    static const int SIGNALS[] = {SIGHUP, SIGINT, SIGTERM, 0};
    struct sigaction waits = {.sa_handler = note_signal, .sa_flags = SA_RESTART}, before[sizeof SIGNALS / sizeof *SIGNALS];
    for (int i = 0; SIGNALS[i]; i++)
        sigaction(SIGNALS[i], &waits, &before[i]);

    int written = 0, placed = 0, good = 1;
    for (; written < count && good; written++)
        good = write_fresh(names_of(folder, &arrays[written]), &arrays[written]);
    for (; placed < count && good; placed++)
        good = put_in_place(names_of(folder, &arrays[placed]));
    int error = errno, last = (placed ? placed : written) - 1;
    for (int i = 0; i < count; i++) {
        Names n = names_of(folder, &arrays[i]);
        unlink(n.fresh);
        if (good)
            unlink(n.old);
        else if (i < placed && rename(n.old, n.own) != 0 && i < last)
            unlink(n.own); /* nothing was there before */
    }

    for (int i = 0; SIGNALS[i]; i++)
        sigaction(SIGNALS[i], &before[i], NULL);
    raise(arrived); /* 0: nothing happens */
    if (!good)
        cannot_run("--%s: %s/%s: cannot be written: %s", option, folder, arrays[last].file, strerror(error));
}
