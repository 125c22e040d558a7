//! One resampling filter, or several from which each image draws one (timm's `interpolation="random"`).

use crate::resample::Filter;
use crate::rng::Rng;

/// Largest number of filters: all that exist.
const MOST: usize = 8;

/// Filters that are drawn with equal probability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filters {
    known: [Filter; MOST],
    count: usize,
}

impl From<Filter> for Filters {
    fn from(filter: Filter) -> Self {
        Filters {
            known: [filter; MOST],
            count: 1,
        }
    }
}

impl Filters {
    /// Make a choice of one to eight filters; `None` for another number.
    pub fn new(filters: &[Filter]) -> Option<Self> {
        let mut found = Filters::from(*filters.first()?);
        found
            .known
            .get_mut(..filters.len())?
            .copy_from_slice(filters);
        found.count = filters.len();
        Some(found)
    }

    /// Draw one of them. A single filter takes no random number, so that later draws do not change.
    pub fn draw(&self, rng: &mut Rng) -> Filter {
        self.choose(|count| rng.below(count))
    }

    /// Return the one of several whose number `below` draws. A single filter asks for no number.
    pub fn choose(&self, below: impl FnOnce(u32) -> u32) -> Filter {
        match self.count {
            1 => self.known[0],
            count => self.known[below(count as u32) as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Key;

    fn rng(draw: u64) -> Rng {
        let key = Key {
            seed: 3,
            epoch: 0,
            draw,
        };
        Rng::new(key, 0)
    }

    #[test]
    fn one_filter_takes_no_random_number() {
        let mut drawn = rng(0);
        assert_eq!(
            Filters::from(Filter::Bicubic).draw(&mut drawn),
            Filter::Bicubic
        );
        assert_eq!(drawn.bits(), rng(0).bits());
    }

    #[test]
    fn several_filters_are_drawn_equally_often() {
        let filters = Filters::new(&[Filter::Bilinear, Filter::Bicubic]).expect("two");
        let bicubic = (0..10_000)
            .filter(|&draw| filters.draw(&mut rng(draw)) == Filter::Bicubic)
            .count();
        // Expected 5000, standard deviation 50: six of those.
        assert!((4700..5300).contains(&bicubic), "{bicubic}");
    }

    #[test]
    fn none_and_too_many_are_refused() {
        assert_eq!(Filters::new(&[]), None);
        assert_eq!(Filters::new(&[Filter::Box; 9]), None);
        assert!(Filters::new(&[Filter::Box; 8]).is_some());
    }
}
