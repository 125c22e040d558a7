//! The writer of baseline JPEGs: recorded symbols, optimal Huffman codes for them, and the marker segments.

mod bits;
pub mod block;
mod optimal;
pub mod symbols;

use self::bits::{write_segments, WriteTable};
use self::optimal::{optimal_code, HuffmanCode};
use self::symbols::{SymbolStream, TABLES};
use super::header::ZIGZAG;
use super::marker;

/// Return the output table of a component: 0 for the first and fourth (luma, key), 1 for the others (chroma). Baseline allows two
/// tables of each kind.
pub fn output_table(component: usize) -> usize {
    usize::from(matches!(component, 1 | 2))
}

/// Return the number of MCUs in a segment, which cover at least `tile_px`. With a divisor of the row, tiles form columns, so the
/// smallest divisor below twice that width is used if there is one. Otherwise segments cross rows.
pub fn restart_interval(mcus_per_row: usize, mcu_width: usize, tile_px: u32) -> usize {
    let wanted = (tile_px as usize).div_ceil(mcu_width).clamp(1, 0xFFFF);
    if wanted >= mcus_per_row {
        return mcus_per_row.min(0xFFFF);
    }
    (wanted..2 * wanted)
        .find(|interval| mcus_per_row.is_multiple_of(*interval))
        .unwrap_or(wanted)
        .min(0xFFFF)
}

/// Free the memory that an unusually large image needed. A writer keeps memory for at most 16 million symbols or bytes.
pub fn shrink(stream: &mut SymbolStream, scratch: &mut Vec<u8>) {
    const KEPT: usize = 1 << 24;
    stream.shrink(KEPT);
    if scratch.len() > KEPT {
        *scratch = Vec::new();
    }
}

/// Append everything from the Huffman tables to the end of the image: a scan of the (identifier, index) of each of
/// `components`, with a restart marker after each `interval` of its `mcus`. `scratch` is reused memory.
pub fn append_scan(
    stream: &SymbolStream,
    interval: usize,
    mcus: usize,
    components: impl Iterator<Item = (u8, usize)>,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    let codes: [HuffmanCode; TABLES] =
        std::array::from_fn(|index| optimal_code(&stream.frequencies(index)));
    append_huffman_tables(&codes, out);
    if interval < mcus {
        append_segment(marker::DRI, &(interval as u16).to_be_bytes(), out);
    }
    let mut scan = vec![0];
    for (id, index) in components {
        scan[0] += 1;
        scan.extend_from_slice(&[id, 0x11 * output_table(index) as u8]);
    }
    scan.extend_from_slice(&[0, 63, 0]);
    append_segment(marker::SOS, &scan, out);
    write_segments(stream, &WriteTable::new(&codes), scratch, out);
    out.extend_from_slice(&[0xFF, marker::EOI]);
}

/// Append a marker segment.
pub fn append_segment(marker: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xFF, marker]);
    out.extend_from_slice(&(payload.len() as u16 + 2).to_be_bytes());
    out.extend_from_slice(payload);
}

fn append_huffman_tables(codes: &[HuffmanCode; TABLES], out: &mut Vec<u8>) {
    let mut payload = Vec::with_capacity(600);
    for (index, code) in codes
        .iter()
        .enumerate()
        .filter(|(_, code)| !code.symbols.is_empty())
    {
        // Class (0 DC, 1 AC) in the upper half, destination in the lower.
        payload.push(((index & 1) << 4 | index >> 1) as u8);
        payload.extend_from_slice(&code.counts);
        payload.extend_from_slice(&code.symbols);
    }
    append_segment(marker::DHT, &payload, out);
}

/// Return the payload of a DQT segment that defines table `number`; `table` is in natural order.
pub fn quantisation_payload(number: u8, table: &[u16; 64]) -> Vec<u8> {
    let wide = table.iter().any(|&step| step > 255);
    let mut payload = vec![u8::from(wide) << 4 | number];
    for &position in &ZIGZAG {
        let step = table[usize::from(position)].to_be_bytes();
        payload.extend_from_slice(if wide { &step } else { &step[1..] });
    }
    payload
}
