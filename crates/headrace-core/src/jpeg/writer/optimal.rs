//! Optimal Huffman codes for given symbol counts under JPEG's two rules: codes have at most 16 bits, and no code consists of ones
//! only.

/// JPEG's longest code (ITU-T T.81, table B.5: sixteen counts).
const LONGEST: usize = 16;
/// 256 symbols, and one more that reserves the code of ones only.
const MAX_LEAVES: usize = 257;

/// A Huffman code as a DHT segment defines it, with its code words.
pub struct HuffmanCode {
    /// Number of codes of 1, 2, … 16 bits.
    pub counts: [u8; LONGEST],
    /// The symbols in the order of their codes.
    pub symbols: Vec<u8>,
    /// Code word of a symbol.
    pub codes: [u16; 256],
    /// Bits of a symbol's code word; 0 if the symbol does not occur.
    pub lengths: [u8; 256],
}

/// Return the code with the fewest total bits for 256 symbols that occur `frequencies[symbol]` times. The result is deterministic:
/// equal frequencies are ordered by symbol.
pub fn optimal_code(frequencies: &[u32]) -> HuffmanCode {
    // Ascending by frequency. The first leaf has weight 0: as the rarest it gets a longest code, which canonical numbering makes
    // the code of ones only, and which is then omitted (T.81 K.2 does the same with weight 1).
    let mut order: Vec<(u32, u8)> = (0..=255u8)
        .filter(|&symbol| frequencies[usize::from(symbol)] > 0)
        .map(|symbol| (frequencies[usize::from(symbol)], 255 - symbol))
        .collect();
    order.sort_unstable();
    let weights: Vec<u64> = std::iter::once(0)
        .chain(order.iter().map(|&(frequency, _)| u64::from(frequency)))
        .collect();
    let lengths = code_lengths(&weights);

    let mut code = HuffmanCode {
        counts: [0; LONGEST],
        symbols: Vec::with_capacity(order.len()),
        codes: [0; 256],
        lengths: [0; 256],
    };
    let (mut next, mut last_length) = (0u32, 0u8);
    for (&(_, reversed), &length) in order.iter().zip(&lengths[1..]).rev() {
        let symbol = 255 - reversed;
        next <<= length - last_length;
        last_length = length;
        code.counts[usize::from(length) - 1] += 1;
        code.symbols.push(symbol);
        code.codes[usize::from(symbol)] = next as u16;
        code.lengths[usize::from(symbol)] = length;
        next += 1;
    }
    code
}

/// Return code lengths for ascending `weights`, at most [`LONGEST`]. The lengths do not ascend.
fn code_lengths(weights: &[u64]) -> Vec<u8> {
    if weights.len() == 1 {
        return vec![1];
    }
    let lengths = huffman_lengths(weights);
    if usize::from(lengths[0]) <= LONGEST {
        return lengths;
    }
    package_merge_lengths(weights)
}

/// Return the lengths of Huffman's algorithm with two queues: the leaves, and the inner nodes, which are created in ascending
/// order.
fn huffman_lengths(weights: &[u64]) -> Vec<u8> {
    let leaves = weights.len();
    let mut inner: Vec<u64> = Vec::with_capacity(leaves - 1);
    let mut parent = vec![0u16; 2 * leaves - 1];
    let (mut leaf, mut node) = (0, 0);
    for made in 0..leaves - 1 {
        let mut sum = 0;
        for _ in 0..2 {
            let take_leaf = node >= made || (leaf < leaves && weights[leaf] <= inner[node]);
            let index = if take_leaf { leaf } else { leaves + node };
            sum += if take_leaf {
                weights[leaf]
            } else {
                inner[node]
            };
            *(if take_leaf { &mut leaf } else { &mut node }) += 1;
            parent[index] = made as u16;
        }
        inner.push(sum);
    }
    // The root is the last inner node; every parent comes after its children.
    let mut depth = vec![0u8; leaves - 1];
    for node in (0..leaves - 2).rev() {
        depth[node] = depth[usize::from(parent[leaves + node])].saturating_add(1);
    }
    (0..leaves)
        .map(|leaf| depth[usize::from(parent[leaf])].saturating_add(1))
        .collect()
}

/// Return optimal lengths of at most [`LONGEST`] bits by package-merge (Larmore and Hirschberg, JACM 37(3), 1990).
fn package_merge_lengths(weights: &[u64]) -> Vec<u8> {
    let leaves = weights.len();
    // is_leaf[level][i]: whether the i-th lightest item of that level is a leaf (else a package of two from the level before).
    let mut is_leaf: Vec<Vec<bool>> = vec![vec![true; leaves]];
    let mut items: Vec<u64> = weights.to_vec();
    for _ in 1..LONGEST {
        let packages: Vec<u64> = items
            .chunks_exact(2)
            .map(|pair| pair[0] + pair[1])
            .collect();
        let (mut leaf, mut package) = (0, 0);
        let mut merged = Vec::with_capacity(leaves + packages.len());
        let mut flags = Vec::with_capacity(leaves + packages.len());
        while leaf < leaves || package < packages.len() {
            let take_leaf =
                package >= packages.len() || (leaf < leaves && weights[leaf] <= packages[package]);
            merged.push(if take_leaf {
                weights[leaf]
            } else {
                packages[package]
            });
            *(if take_leaf { &mut leaf } else { &mut package }) += 1;
            flags.push(take_leaf);
        }
        items = merged;
        is_leaf.push(flags);
    }
    let mut lengths = vec![0u8; leaves];
    let mut taken = 2 * leaves - 2;
    for flags in is_leaf.iter().rev() {
        let taken_leaves = flags[..taken].iter().filter(|&&flag| flag).count();
        for length in &mut lengths[..taken_leaves] {
            *length += 1;
        }
        taken = 2 * (taken - taken_leaves);
    }
    lengths
}

const _: () = assert!(MAX_LEAVES < u16::MAX as usize / 2);

#[cfg(test)]
mod tests {
    use super::*;

    fn total_bits(frequencies: &[u32; 256], code: &HuffmanCode) -> u64 {
        (0..256)
            .map(|s| u64::from(frequencies[s]) * u64::from(code.lengths[s]))
            .sum()
    }

    fn assert_valid(frequencies: &[u32; 256], code: &HuffmanCode) {
        let mut space = 0u32;
        for (symbol, &frequency) in frequencies.iter().enumerate() {
            let length = u32::from(code.lengths[symbol]);
            assert_eq!(length > 0, frequency > 0);
            if length > 0 {
                assert!(length <= 16);
                space += 1 << (16 - length);
                assert!(
                    u32::from(code.codes[symbol]) < (1 << length) - 1,
                    "a code of ones only"
                );
            }
        }
        assert!(space < 1 << 16, "not a prefix code");
        assert_eq!(
            code.counts.iter().map(|&c| usize::from(c)).sum::<usize>(),
            code.symbols.len()
        );
    }

    #[test]
    fn equal_frequencies_give_codes_of_nearly_equal_length() {
        let frequencies = [7; 256];
        let code = optimal_code(&frequencies);
        assert_valid(&frequencies, &code);
        assert_eq!(code.counts[7], 255); // one of the 8-bit codes makes room for two of 9 bits, of which one stays free
        assert_eq!(code.counts[8], 1);
    }

    #[test]
    fn one_symbol_or_none_is_coded() {
        let mut frequencies = [0; 256];
        assert!(optimal_code(&frequencies).symbols.is_empty());
        frequencies[9] = 5;
        let code = optimal_code(&frequencies);
        assert_valid(&frequencies, &code);
        assert_eq!((code.lengths[9], code.codes[9]), (1, 0));
    }

    #[test]
    fn fibonacci_frequencies_are_limited_to_sixteen_bits() {
        let mut frequencies = [0u32; 256];
        let (mut a, mut b) = (1u32, 1u32);
        for frequency in frequencies.iter_mut().take(40) {
            *frequency = a;
            (a, b) = (b, a + b);
        }
        let code = optimal_code(&frequencies);
        assert_valid(&frequencies, &code);
        assert_eq!(code.lengths[0], 16);
    }

    #[test]
    fn the_limited_code_equals_huffmans_if_no_code_is_too_long() {
        let weights: Vec<u64> = std::iter::once(0)
            .chain((1..200u64).map(|i| i * i % 97 + 1))
            .collect();
        let mut sorted = weights.clone();
        sorted.sort_unstable();
        let cost = |lengths: &[u8]| -> u64 {
            sorted
                .iter()
                .zip(lengths)
                .map(|(w, &l)| w * u64::from(l))
                .sum()
        };
        assert_eq!(
            cost(&huffman_lengths(&sorted)),
            cost(&package_merge_lengths(&sorted))
        );
    }

    #[test]
    fn the_code_is_deterministic_and_shorter_than_a_flat_code() {
        let mut frequencies = [0u32; 256];
        let mut state = 1u32;
        for frequency in &mut frequencies {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *frequency = state >> (state >> 28);
        }
        let (first, second) = (optimal_code(&frequencies), optimal_code(&frequencies));
        assert_valid(&frequencies, &first);
        assert_eq!(first.symbols, second.symbols);
        assert!(
            total_bits(&frequencies, &first) < frequencies.iter().map(|&f| u64::from(f) * 8).sum()
        );
    }
}
