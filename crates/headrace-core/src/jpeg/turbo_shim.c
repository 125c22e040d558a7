/* A shim over libjpeg's API, which reports errors by longjmp. A longjmp must not cross Rust frames, so every setjmp is in this file, and
 * each function returns a status with the numbers of headrace_core::error::Status. */
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

enum { OK = 0, TRUNCATED = 3, CORRUPT_HEADER = 4, MISSING_TABLE = 5, CORRUPT_DATA = 6, UNSUPPORTED = 8, TOO_LARGE = 9 };

/* A region to decode, and what its buffers were made for. The layout is that of `RegionOfShim` in turbo.rs. */
typedef struct {
  size_t out_bytes, line_bytes;
  uint32_t image_width, image_height, components; /* of the first reading of the header */
  uint32_t scale_divisor, x, y, w, h;
  uint32_t to_the_end; /* read the rows behind the region too, so that the status is that of the whole file */
  uint32_t most_scans; /* a file of more scans is refused */
  size_t most_coefficient_bytes; /* of whole-image coefficient arrays (progressive and multi-scan files); larger files are refused */
} headrace_region_t;

typedef struct {
  struct jpeg_error_mgr base; /* must be first: libjpeg gets a pointer to it */
  jmp_buf escape;
  int warned; /* status of the first warning that means damaged pixels, or 0 */
} errors_t;

static void on_error(j_common_ptr cinfo) {
  errors_t *errors = (errors_t *)cinfo->err;
  longjmp(errors->escape, 1);
}

static void on_message(j_common_ptr cinfo, int level) {
  errors_t *errors = (errors_t *)cinfo->err;
  if (level >= 0 || errors->warned) return;
  switch (errors->base.msg_code) {
    case JWRN_JPEG_EOF: errors->warned = TRUNCATED; break;
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_BOGUS_PROGRESSION: errors->warned = CORRUPT_DATA; break;
    default: break; /* extraneous bytes, unusual JFIF or Adobe versions: ignored, as in Pillow */
  }
}

static void on_output(j_common_ptr cinfo) { (void)cinfo; }

/* The count of scans. A scan of a few bytes can cover the whole image, so a small file could keep a core busy for hours. */
typedef struct {
  struct jpeg_progress_mgr base; /* must be first: libjpeg gets a pointer to it */
  uint32_t most_scans;
} scans_t;

static void on_progress(j_common_ptr cinfo) {
  const scans_t *scans = (const scans_t *)cinfo->progress;
  if (cinfo->is_decompressor && (uint32_t)((j_decompress_ptr)cinfo)->input_scan_number > scans->most_scans) {
    cinfo->err->msg_code = JERR_IMAGE_TOO_BIG;
    cinfo->err->error_exit(cinfo);
  }
}

static void count_scans(struct jpeg_decompress_struct *cinfo, scans_t *scans, uint32_t most_scans) {
  memset(scans, 0, sizeof *scans);
  scans->base.progress_monitor = on_progress;
  scans->most_scans = most_scans;
  cinfo->progress = &scans->base;
}

static size_t coefficient_bytes(const struct jpeg_decompress_struct *cinfo) {
  size_t blocks = 0;
  for (int c = 0; c < cinfo->num_components; c++) {
    const jpeg_component_info *component = &cinfo->comp_info[c];
    blocks += (size_t)component->width_in_blocks * component->height_in_blocks;
  }
  return blocks * sizeof(JBLOCK);
}

static int status_of(errors_t *errors, int reading_header) {
  switch (errors->base.msg_code) {
    case JERR_NO_HUFF_TABLE:
    case JERR_NO_QUANT_TABLE:
    case JERR_NO_ARITH_TABLE: return MISSING_TABLE;
    case JERR_INPUT_EMPTY:
    case JERR_INPUT_EOF:
    case JERR_SOS_NO_SOF:
    case JERR_NO_IMAGE: return TRUNCATED;
    case JERR_SOF_UNSUPPORTED:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_BAD_PRECISION:
    case JERR_NOT_COMPILED: return UNSUPPORTED;
    case JERR_OUT_OF_MEMORY:
    case JERR_IMAGE_TOO_BIG: return TOO_LARGE;
    default: return errors->warned ? errors->warned : (reading_header ? CORRUPT_HEADER : CORRUPT_DATA);
  }
}

static void install(errors_t *errors, struct jpeg_decompress_struct *cinfo) {
  cinfo->err = jpeg_std_error(&errors->base);
  errors->base.error_exit = on_error;
  errors->base.emit_message = on_message;
  errors->base.output_message = on_output;
  errors->warned = 0;
}

/* Returns whether the frame is lossless (SOF3), which has samples in place of 8x8 blocks. Such files have no DCT to crop or scale, and
 * Pillow does not read them. */
static int is_lossless(const struct jpeg_decompress_struct *cinfo) {
#if JPEG_LIB_VERSION >= 70
  return cinfo->min_DCT_h_scaled_size != DCTSIZE;
#else
  return cinfo->min_DCT_scaled_size != DCTSIZE;
#endif
}

/* Returns UNSUPPORTED for files that no function here decodes. It depends on the header alone. */
static int kind_status(const struct jpeg_decompress_struct *cinfo) {
  int depth = cinfo->data_precision == 8 || cinfo->data_precision == 12;
  return depth && !is_lossless(cinfo) && cinfo->num_components <= 4 ? OK : UNSUPPORTED;
}

int headrace_turbo_size(const uint8_t *data, size_t length, uint32_t *width, uint32_t *height, uint32_t *components) {
  struct jpeg_decompress_struct cinfo;
  errors_t errors;
  memset(&cinfo, 0, sizeof cinfo);
  install(&errors, &cinfo);
  if (setjmp(errors.escape)) {
    int status = status_of(&errors, 1);
    jpeg_destroy_decompress(&cinfo);
    return status;
  }
  jpeg_create_decompress(&cinfo);
  jpeg_mem_src(&cinfo, data, (unsigned long)length);
  jpeg_read_header(&cinfo, TRUE);
  *width = cinfo.image_width;
  *height = cinfo.image_height;
  *components = (uint32_t)cinfo.num_components;
  int refused = kind_status(&cinfo);
  jpeg_destroy_decompress(&cinfo);
  return errors.warned == TRUNCATED ? TRUNCATED : refused;
}

/* Returns whether scans of a progressive file are missing, by its first ten coefficients. The decoder then smooths blocks by their
 * neighbours. */
static int is_incomplete(const struct jpeg_decompress_struct *cinfo) {
  for (int c = 0; c < cinfo->num_components && cinfo->progressive_mode; c++)
    for (int k = 0; k < 10; k++)
      if (cinfo->coef_bits[c][k] != 0) return 1;
  return 0;
}

static void convert_four(const uint8_t *from, uint8_t *to, uint32_t pixels) {
  for (uint32_t i = 0; i < pixels; i++, from += 4, to += 3) {
    /* Photoshop stores inverted inks, and Pillow assumes them in every file: 255 is no ink. */
    for (int c = 0; c < 3; c++) {
      int product = from[c] * from[3] + 128;
      to[c] = (uint8_t)(((product >> 8) + product) >> 8);
    }
  }
}

/* Reads rows from a started decompressor of 12 bits: whole lines, of which the upper eight bits of every sample are used. */
static void read_twelve_bits(struct jpeg_decompress_struct *cinfo, const headrace_region_t *region, uint8_t *out, uint8_t *line) {
  uint32_t x = region->x, y = region->y, w = region->w, h = region->h;
  size_t stride = (size_t)w * 3;
  J12SAMPROW rows[1] = {(J12SAMPROW)line};
  size_t channels = cinfo->num_components == 4 ? 4 : 3;
  while (cinfo->output_scanline < y) jpeg12_read_scanlines(cinfo, rows, 1);
  for (uint32_t row = 0; row < h; row++) {
    jpeg12_read_scanlines(cinfo, rows, 1);
    /* In place: a byte is never written beyond the sample that it comes from. */
    for (size_t i = 0; i < w * channels; i++) line[i] = (uint8_t)(rows[0][x * channels + i] >> 4);
    if (channels == 4) convert_four(line, out + (size_t)row * stride, w);
    else memcpy(out + (size_t)row * stride, line, (size_t)w * 3);
  }
  while (region->to_the_end && cinfo->output_scanline < cinfo->output_height) jpeg12_read_scanlines(cinfo, rows, 1);
}

/* Smallest width of a cropped decode in pixels: eight chroma samples at the largest sampling factor. */
enum { LEAST_STRIP = 32 };

/* Returns whether a started decompressor writes no more than `region` expects: the header that it has read states the size and
 * components of the first reading, the region lies in the image, and a row of the whole width fits into the line buffer. */
static int is_as_expected(const struct jpeg_decompress_struct *cinfo, const headrace_region_t *region) {
  size_t sample_bytes = cinfo->data_precision == 12 ? 2 : 1;
  size_t channels = cinfo->num_components == 4 ? 4 : 3;
  return cinfo->image_width == region->image_width && cinfo->image_height == region->image_height &&
         (uint32_t)cinfo->num_components == region->components && cinfo->output_components == (int)channels &&
         (uint64_t)region->x + region->w <= cinfo->output_width && (uint64_t)region->y + region->h <= cinfo->output_height &&
         cinfo->output_width * channels * sample_bytes <= region->line_bytes &&
         (uint64_t)region->w * 3 * region->h <= region->out_bytes;
}

/* Decodes the region at 1/scale_divisor of the size as RGB, without gaps between its rows, with the slow integer IDCT and fancy
 * upsampling. `line`, aligned to 2 bytes, is for one row of the whole image. CMYK and YCCK are converted as in Pillow, by the product of the
 * inverted inks. */
int headrace_turbo_region(const uint8_t *data, size_t length, const headrace_region_t *region, uint8_t *out, uint8_t *line) {
  uint32_t x = region->x, y = region->y, w = region->w, h = region->h;
  size_t stride = (size_t)w * 3;
  struct jpeg_decompress_struct cinfo;
  scans_t scans;
  errors_t errors;
  memset(&cinfo, 0, sizeof cinfo);
  install(&errors, &cinfo);
  volatile int reading_header = 1;
  if (setjmp(errors.escape)) {
    int status = status_of(&errors, reading_header);
    jpeg_destroy_decompress(&cinfo);
    return status;
  }
  jpeg_create_decompress(&cinfo);
  count_scans(&cinfo, &scans, region->most_scans);
  jpeg_mem_src(&cinfo, data, (unsigned long)length);
  jpeg_read_header(&cinfo, TRUE);
  int refused = kind_status(&cinfo);
  if (refused == OK && jpeg_has_multiple_scans(&cinfo) && coefficient_bytes(&cinfo) > region->most_coefficient_bytes)
    refused = TOO_LARGE;
  if (refused != OK) {
    jpeg_destroy_decompress(&cinfo);
    return refused;
  }
  int four = cinfo.num_components == 4;
  cinfo.out_color_space = four ? JCS_CMYK : JCS_RGB;
  cinfo.dct_method = JDCT_ISLOW;
  cinfo.do_fancy_upsampling = TRUE;
  cinfo.scale_num = 1;
  cinfo.scale_denom = region->scale_divisor;
  reading_header = 0;
  jpeg_start_decompress(&cinfo);
  if (!is_as_expected(&cinfo, region)) {
    jpeg_destroy_decompress(&cinfo);
    return CORRUPT_HEADER; /* another thread has changed the bytes since the first reading */
  }
  if (cinfo.data_precision == 12) {
    read_twelve_bits(&cinfo, region, out, line);
    int twelve_warned = errors.warned;
    jpeg_destroy_decompress(&cinfo);
    return twelve_warned;
  }

  /* Fancy upsampling reads one chroma sample on each side, so one more pixel keeps the edges of the crop exact. */
  JDIMENSION left = x > 0 ? x - 1 : 0;
  JDIMENSION right = x + w < cinfo.output_width ? x + w + 1 : cinfo.output_width;
  /* Upsampling a strip whose chroma is one or two samples wide differs from upsampling the whole image. */
  if (right < left + LEAST_STRIP) right = left + LEAST_STRIP;
  if (right > cinfo.output_width) right = cinfo.output_width;
  if (right < left + LEAST_STRIP) left = right > LEAST_STRIP ? right - LEAST_STRIP : 0;
  JDIMENSION width = right - left;
  /* Smoothing has fewer neighbours in a cropped decode, so such files are decoded whole. */
  int incomplete = is_incomplete(&cinfo);
  int partial = width < cinfo.output_width && !incomplete;
  if (partial) jpeg_crop_scanline(&cinfo, &left, &width);
  else left = 0;
  JSAMPROW unwanted[1] = {line};
  if (incomplete) while (cinfo.output_scanline < y) jpeg_read_scanlines(&cinfo, unwanted, 1);
  else if (y > 0) jpeg_skip_scanlines(&cinfo, y);
  for (uint32_t row = 0; row < h; row++) {
    uint8_t *to = out + (size_t)row * stride;
    int direct = !four && w == cinfo.output_width;
    JSAMPROW rows[1] = {direct ? to : line};
    jpeg_read_scanlines(&cinfo, rows, 1);
    if (direct) {
      continue;
    } else if (!four) {
      memcpy(to, line + (size_t)(x - left) * 3, (size_t)w * 3);
    } else {
      convert_four(line + (size_t)(x - left) * 4, to, w);
    }
  }
  /* Damage behind the region is damage of the file. Files of several scans have been read whole by now. */
  JDIMENSION behind = cinfo.output_height - cinfo.output_scanline;
  if (region->to_the_end && behind > 0 && !jpeg_has_multiple_scans(&cinfo)) {
    /* Skipping the last row too would skip the entropy decoding of all rows. */
    if (behind > 1) jpeg_skip_scanlines(&cinfo, behind - 1);
    jpeg_read_scanlines(&cinfo, unwanted, 1);
  }
  int warned = errors.warned;
  jpeg_abort_decompress(&cinfo);
  jpeg_destroy_decompress(&cinfo);
  return warned;
}

/* Encodes w x h RGB pixels (gray: one byte per pixel). `factors` holds h and v of each component; `space` is 1 for gray, 3 for YCbCr, 2
 * for RGB stored unchanged. `flags`: 1 optimised tables, 2 progressive, 4 one scan per component, 8 arithmetic, 16 twelve bits (samples
 * times 16, plus four bits of noise), 32 lossless. Returns the number of bytes written to `out`, or 0. */
size_t headrace_turbo_encode(const uint8_t *pixels, uint32_t w, uint32_t h, int space, const uint8_t *factors, int quality,
                             uint32_t restart_interval, int flags, uint8_t *out, size_t room) {
  struct jpeg_compress_struct cinfo;
  errors_t errors;
  memset(&cinfo, 0, sizeof cinfo);
  cinfo.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = on_error;
  errors.base.emit_message = on_message;
  errors.base.output_message = on_output;
  errors.warned = 0;
  if (setjmp(errors.escape)) {
    jpeg_destroy_compress(&cinfo);
    return 0;
  }
  jpeg_create_compress(&cinfo);
  unsigned char *buffer = out;
  unsigned long size = (unsigned long)room;
  jpeg_mem_dest(&cinfo, &buffer, &size);
  cinfo.image_width = w;
  cinfo.image_height = h;
  cinfo.input_components = space == 1 ? 1 : 3;
  cinfo.in_color_space = space == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&cinfo);
  jpeg_set_colorspace(&cinfo, space == 1 ? JCS_GRAYSCALE : space == 2 ? JCS_RGB : JCS_YCbCr);
  jpeg_set_quality(&cinfo, quality, TRUE);
  cinfo.optimize_coding = (flags & 1) != 0;
  cinfo.arith_code = (flags & 8) != 0;
  cinfo.restart_interval = restart_interval;
  if (flags & 16) {
    cinfo.data_precision = 12;
    cinfo.optimize_coding = TRUE;
  }
  for (int c = 0; c < cinfo.num_components; c++) {
    cinfo.comp_info[c].h_samp_factor = factors[2 * c];
    cinfo.comp_info[c].v_samp_factor = factors[2 * c + 1];
  }
  if (flags & 2) jpeg_simple_progression(&cinfo);
  jpeg_scan_info scans[3];
  if (flags & 4) {
    memset(scans, 0, sizeof scans);
    for (int c = 0; c < 3; c++) {
      scans[c].comps_in_scan = 1;
      scans[c].component_index[0] = c;
      scans[c].Se = 63;
    }
    cinfo.scan_info = scans;
    cinfo.num_scans = cinfo.num_components;
  }
  if (flags & 32) jpeg_enable_lossless(&cinfo, 1, 0);
  jpeg_start_compress(&cinfo, TRUE);
  size_t samples = (size_t)w * cinfo.input_components;
  J12SAMPLE *wide = flags & 16 ? malloc(samples * sizeof *wide) : NULL;
  while (wide && cinfo.next_scanline < h) {
    const uint8_t *from = pixels + cinfo.next_scanline * samples;
    for (size_t i = 0; i < samples; i++) wide[i] = (J12SAMPLE)(from[i] << 4 | (i * 7 & 15));
    J12SAMPROW rows[1] = {wide};
    jpeg12_write_scanlines(&cinfo, rows, 1);
  }
  free(wide);
  while (cinfo.next_scanline < h) {
    JSAMPROW rows[16];
    JDIMENSION count = h - cinfo.next_scanline < 16 ? h - cinfo.next_scanline : 16;
    for (JDIMENSION i = 0; i < count; i++)
      rows[i] = (JSAMPROW)(pixels + (size_t)(cinfo.next_scanline + i) * w * cinfo.input_components);
    jpeg_write_scanlines(&cinfo, rows, count);
  }
  jpeg_finish_compress(&cinfo);
  size_t written = buffer == out ? size : 0; /* if the buffer is full, libjpeg allocates another one, which is refused */
  if (buffer != out) free(buffer);
  jpeg_destroy_compress(&cinfo);
  return written;
}

/* Reads all coefficients of a file of any coding and calls `on_row` for each MCU row. For component c and line l of the row it gets the
 * blocks rows[4 * c + l] (NULL outside the image) and their number widths[c]; a status other than OK ends the reading. `quantisation`
 * receives four tables in natural order. A file of one component is read as MCUs of one block. Progressive files must be complete: a
 * decoder smooths the blocks of others, which a copy of the coefficients would not reproduce. */
int headrace_turbo_coefficients(const uint8_t *data, size_t length, uint32_t most_scans, size_t most_coefficient_bytes,
                                int (*on_row)(void *context, const int16_t *const *rows, const uint32_t *widths),
                                void *context, uint16_t *quantisation) {
  struct jpeg_decompress_struct cinfo;
  scans_t scans;
  errors_t errors;
  memset(&cinfo, 0, sizeof cinfo);
  install(&errors, &cinfo);
  volatile int reading_header = 1;
  volatile int status = OK;
  if (setjmp(errors.escape)) {
    status = status_of(&errors, reading_header);
    jpeg_destroy_decompress(&cinfo);
    return status;
  }
  jpeg_create_decompress(&cinfo);
  count_scans(&cinfo, &scans, most_scans);
  jpeg_mem_src(&cinfo, data, (unsigned long)length);
  jpeg_read_header(&cinfo, TRUE);
  if (cinfo.data_precision != 8 || kind_status(&cinfo) != OK) status = UNSUPPORTED;
  else if (coefficient_bytes(&cinfo) > most_coefficient_bytes) status = TOO_LARGE;
  if (status != OK) {
    jpeg_destroy_decompress(&cinfo);
    return status;
  }
  reading_header = 0;
  jvirt_barray_ptr *arrays = jpeg_read_coefficients(&cinfo);
  status = errors.warned;
  for (int c = 0; c < cinfo.num_components && status == OK; c++) {
    const JQUANT_TBL *table = cinfo.comp_info[c].quant_table;
    if (table == NULL) status = TRUNCATED; /* no scan has this component */
    else memcpy(quantisation + 64 * c, table->quantval, sizeof table->quantval);
  }
  if (status == OK && is_incomplete(&cinfo)) status = UNSUPPORTED;
  int single = cinfo.num_components == 1;
  JDIMENSION lines = single ? 1 : (JDIMENSION)cinfo.max_v_samp_factor;
  JDIMENSION mcu_rows = single ? cinfo.comp_info[0].height_in_blocks
                               : (cinfo.image_height + lines * DCTSIZE - 1) / (lines * DCTSIZE);
  for (JDIMENSION mcu_row = 0; mcu_row < mcu_rows && status == OK; mcu_row++) {
    const int16_t *rows[16] = {NULL};
    uint32_t widths[4] = {0};
    for (int c = 0; c < cinfo.num_components; c++) {
      const jpeg_component_info *component = &cinfo.comp_info[c];
      JDIMENSION count = single ? 1 : (JDIMENSION)component->v_samp_factor;
      JBLOCKARRAY blocks =
          (*cinfo.mem->access_virt_barray)((j_common_ptr)&cinfo, arrays[c], mcu_row * count, count, FALSE);
      for (JDIMENSION line = 0; line < count; line++)
        if (mcu_row * count + line < component->height_in_blocks) rows[4 * c + line] = (const int16_t *)blocks[line];
      widths[c] = component->width_in_blocks;
    }
    status = on_row(context, rows, widths);
  }
  jpeg_destroy_decompress(&cinfo);
  return status;
}
