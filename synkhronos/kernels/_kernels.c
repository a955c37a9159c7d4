/* Copy and reduce arrays that are larger than the caches; `streaming.py` and `transports/share.py` tell when.
 *
 * NumPy's stores fetch a cache line before they overwrite it, and a reduction of two arrays into two others so moves
 * six times the data of one. Non-temporal stores go past the caches and leave out the fetch: four times. And one call
 * reduces any number of arrays, each pass of which stays within the first cache.
 *
 * The results have the bits of `reductions.combine_into`: the same operations in the same order. (Compiled without
 * contraction to fused multiply-adds. The sign of a weighted mean that is 0 may differ, as between versions of NumPy.)
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define CHUNK 4096        /* bytes of each array that are worked on at a time: a few of them fit the first cache */
#define STREAM_CHUNK 1024 /* the same where results go past the caches: so loads and stores alternate (measured) */
#define MOST 64           /* arrays that are reduced together */

/* Copy past the caches where `stream` says so and the machine can. */
static void
store(char *target, const char *source, size_t nbytes, int stream)
{
#if defined(__SSE2__)
    if (stream && nbytes >= 64) {
        size_t head = (-(uintptr_t)target) & 15;
        memcpy(target, source, head);
        target += head, source += head, nbytes -= head;
        for (; nbytes >= 64; target += 64, source += 64, nbytes -= 64) {
            __m128i a = _mm_loadu_si128((const __m128i *)source);
            __m128i b = _mm_loadu_si128((const __m128i *)source + 1);
            __m128i c = _mm_loadu_si128((const __m128i *)source + 2);
            __m128i d = _mm_loadu_si128((const __m128i *)source + 3);
            _mm_stream_si128((__m128i *)target, a);
            _mm_stream_si128((__m128i *)target + 1, b);
            _mm_stream_si128((__m128i *)target + 2, c);
            _mm_stream_si128((__m128i *)target + 3, d);
        }
    }
#endif
    memcpy(target, source, nbytes);
}

/* Make what was stored past the caches visible to the other ranks before they are told that it is there. */
static void
finish(int stream)
{
#if defined(__SSE2__)
    if (stream)
        _mm_sfence();
#endif
}

/* Compile what follows for wider vectors, too; which are used is decided when the library is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_WIDTH
#endif

enum { SUM, MIDPOINT, MEAN };

/* NumPy's minimum and maximum: a nan wins. (Of 0 and -0 the second, as most of NumPy's own.) */
#define LEAST(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define GREATEST(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

/* Reduce n elements (at most a chunk) of all parts into `out`. */
#define DEFINE_REDUCE(T, NAME, ISINF)                                                                                  \
    FOR_EVERY_WIDTH static void                                                                                        \
    NAME(int op, const T *const *parts, int n_parts, const T *weights, T total, T *restrict out, size_t n)             \
    {                                                                                                                  \
        const T *first = parts[0];                                                                                     \
        if (n_parts == 1) {                                                                                            \
            memcpy(out, first, n * sizeof(T));                                                                         \
        } else if (op == SUM) {                                                                                        \
            const T *second = parts[1];                                                                                \
            for (size_t i = 0; i < n; i++)                                                                             \
                out[i] = first[i] + second[i];                                                                         \
            for (int p = 2; p < n_parts; p++) {                                                                        \
                const T *part = parts[p];                                                                              \
                for (size_t i = 0; i < n; i++)                                                                         \
                    out[i] += part[i];                                                                                 \
            }                                                                                                          \
        } else if (op == MIDPOINT) {                                                                                   \
            const T *second = parts[1];                                                                                \
            for (size_t i = 0; i < n; i++) {                                                                           \
                T sum = first[i] + second[i];                                                                          \
                T halves = first[i] * (T)0.5 + second[i] * (T)0.5;                                                     \
                out[i] = ISINF(sum) ? halves : sum * (T)0.5;                                                           \
            }                                                                                                          \
        } else {                                                                                                       \
            T low[CHUNK / sizeof(T)], high[CHUNK / sizeof(T)];                                                         \
            for (size_t i = 0; i < n; i++) {                                                                           \
                low[i] = high[i] = first[i];                                                                           \
                out[i] = first[i] * weights[0];                                                                        \
            }                                                                                                          \
            for (int p = 1; p < n_parts; p++) {                                                                        \
                const T *part = parts[p], weight = weights[p];                                                         \
                for (size_t i = 0; i < n; i++) {                                                                       \
                    out[i] += part[i] * weight;                                                                        \
                    low[i] = LEAST(low[i], part[i]);                                                                   \
                    high[i] = GREATEST(high[i], part[i]);                                                              \
                }                                                                                                      \
            }                                                                                                          \
            for (size_t i = 0; i < n; i++) {                                                                           \
                T mean = out[i] / total;                                                                               \
                mean = GREATEST(mean, low[i]);                                                                         \
                out[i] = LEAST(mean, high[i]);                                                                         \
            }                                                                                                          \
        }                                                                                                              \
    }

#define BIG_FLOAT(x) ((x) > 3.4028234663852886e38f || (x) < -3.4028234663852886e38f)
#define BIG_DOUBLE(x) ((x) > 1.7976931348623157e308 || (x) < -1.7976931348623157e308)
DEFINE_REDUCE(float, reduce_float, BIG_FLOAT)
DEFINE_REDUCE(double, reduce_double, BIG_DOUBLE)

/* Read a sequence of numbers into an array of doubles; return how many, or -1 with an exception. */
static int
read_numbers(PyObject *given, double *numbers)
{
    PyObject *fast = PySequence_Fast(given, "expected a sequence");
    Py_ssize_t n = fast ? PySequence_Fast_GET_SIZE(fast) : -1;
    if (n > MOST) {
        PyErr_Format(PyExc_ValueError, "expected at most %d parts, got %zd", MOST, n);
        n = -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        numbers[i] = PyFloat_AsDouble(PySequence_Fast_GET_ITEM(fast, i));
        if (PyErr_Occurred())
            n = -1;
    }
    Py_XDECREF(fast);
    return (int)n;
}

PyDoc_STRVAR(reduce_doc,
"reduce(table, n_parts, n_targets, typecode, op, chosen, weights, total, stream)\n--\n\n"
"Reduce arrays that are given by their addresses.\n\n"
"Parameters\n----------\n"
"table : contiguous array of int64\n"
"    Per piece: how many elements, the address of each part, the address of each target.\n"
"n_parts, n_targets : int\n"
"    How many there are of each in a piece.\n"
"typecode : 'f' or 'd'\n"
"    Of the elements.\n"
"op : int\n"
"    0: the sum of the parts, from left to right. 1: the mean of two. 2: the weighted mean.\n"
"chosen : sequence of int\n"
"    The parts that count.\n"
"weights : sequence of float\n"
"    Of those, for op 2.\n"
"total : float\n"
"    What the weighted sum is divided by.\n"
"stream : bool\n"
"    Whether to store past the caches.");

static PyObject *
reduce(PyObject *module, PyObject *args)
{
    Py_buffer table;
    int n_parts, n_targets, typecode, op, stream, ok = 0;
    double total, chosen[MOST], weights[MOST];
    float narrow[MOST];
    PyObject *chosen_given, *weights_given;
    if (!PyArg_ParseTuple(args, "y*iiCiOOdp", &table, &n_parts, &n_targets, &typecode, &op, &chosen_given,
                          &weights_given, &total, &stream))
        return NULL;
    int n_chosen = read_numbers(chosen_given, chosen);
    int n_weights = n_chosen < 0 ? -1 : read_numbers(weights_given, weights);
    if (n_weights < 0)
        goto end;
    size_t width = 1 + (size_t)n_parts + (size_t)n_targets, itemsize = typecode == 'f' ? sizeof(float) : sizeof(double);
    if (n_parts < 1 || n_targets < 1 || table.len % (Py_ssize_t)(width * sizeof(int64_t)) || n_chosen < 1 ||
        (typecode != 'f' && typecode != 'd') || op < SUM || op > MEAN || (op == MIDPOINT && n_chosen != 2) ||
        (op == MEAN && n_weights != n_chosen)) {
        PyErr_SetString(PyExc_ValueError, "the arguments do not fit each other");
        goto end;
    }
    for (int p = 0; p < n_chosen; p++) {
        if (!(0 <= chosen[p] && chosen[p] < n_parts)) {
            PyErr_SetString(PyExc_ValueError, "there is no such part");
            goto end;
        }
    }
    for (int p = 0; p < n_weights; p++)
        narrow[p] = (float)weights[p];
    Py_BEGIN_ALLOW_THREADS
    size_t n_pieces = table.len / (width * sizeof(int64_t));
    for (size_t piece = 0; piece < n_pieces; piece++) {
        const int64_t *row = (const int64_t *)table.buf + piece * width, *targets = row + 1 + n_parts;
        size_t nbytes = (size_t)row[0] * itemsize, chunk = stream ? STREAM_CHUNK : CHUNK;
        for (size_t at = 0; at < nbytes; at += chunk) {
            size_t some = nbytes - at < chunk ? nbytes - at : chunk;
            union { float f[CHUNK / sizeof(float)]; double d[CHUNK / sizeof(double)]; } out;
            const void *parts[MOST];
            for (int p = 0; p < n_chosen; p++)
                parts[p] = (const char *)(intptr_t)row[1 + (int)chosen[p]] + at;
            if (typecode == 'f')
                reduce_float(op, (const float *const *)parts, n_chosen, narrow, (float)total, out.f,
                             some / sizeof(float));
            else
                reduce_double(op, (const double *const *)parts, n_chosen, weights, total, out.d,
                              some / sizeof(double));
            for (int t = 0; t < n_targets; t++)
                store((char *)(intptr_t)targets[t] + at, (const char *)&out, some, stream);
        }
    }
    finish(stream);
    Py_END_ALLOW_THREADS
    ok = 1;
end:
    PyBuffer_Release(&table);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(copy_doc,
"copy(target, source)\n--\n\n"
"Copy one contiguous buffer into another of the same size, past the caches.");

static PyObject *
copy(PyObject *module, PyObject *args)
{
    Py_buffer target, source;
    if (!PyArg_ParseTuple(args, "w*y*", &target, &source))
        return NULL;
    int same = target.len == source.len;
    if (same) {
        Py_BEGIN_ALLOW_THREADS
        store(target.buf, source.buf, (size_t)target.len, 1);
        finish(1);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_Format(PyExc_ValueError, "the buffers have %zd and %zd bytes", target.len, source.len);
    }
    PyBuffer_Release(&target);
    PyBuffer_Release(&source);
    if (!same)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"reduce", reduce, METH_VARARGS, reduce_doc},
    {"copy", copy, METH_VARARGS, copy_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", "Copying and reducing past the caches.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__kernels(void)
{
    return PyModule_Create(&definition);
}
