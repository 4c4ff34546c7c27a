/* transpose.h - the kernel to write in exercise banks_and_swizzles.4, as transpose_main.c calls it. */
#ifdef __cplusplus
extern "C" {
#endif
/* to[column][row] = from[row][column]. Device memory: from [rows][columns], to [columns][rows]. */
void transpose(const float *from, float *to, int rows, int columns);
#ifdef __cplusplus
}
#endif
