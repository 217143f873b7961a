//! A CephFS file's layout: which of its bytes are in which object.
//!
//! As in "File Layouts" and "File Striping" of the Ceph documentation.

use crate::placement::chunks::MAX_CELLS;
use crate::placement::tool::{expected_error, parse_number};
use crate::placement::{PlacementError, Result};
use crate::volume::ByteRange;

/// The most objects in one answer.
pub const MAX_OBJECTS: u64 = MAX_CELLS as u64;

/// A file's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes in one object before the next object's turn.
    pub stripe_unit: u64,
    /// Objects that take turns.
    pub stripe_count: u64,
    /// Bytes of an object, a multiple of `stripe_unit`.
    pub object_size: u64,
    /// The pool's name or number.
    pub pool: String,
    /// The namespace of its objects in the pool; usually empty.
    pub namespace: String,
}

/// A part of a file that is striped over objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripedPiece {
    /// Its bytes.
    pub range: ByteRange,
    /// Unit k is in object k modulo their number.
    pub unit: u64,
    /// The objects' numbers.
    pub objects: Vec<u64>,
}

impl Layout {
    /// The objects of a file of `size` bytes, at most the first [`MAX_OBJECTS`].
    ///
    /// # Errors
    /// [`PlacementError::InvalidAnswer`] if the layout's numbers are impossible.
    pub fn pieces(&self, size: u64) -> Result<Vec<StripedPiece>> {
        let nonsense = || {
            PlacementError::InvalidAnswer(format!(
                "units of {} in {} objects of {} bytes",
                self.stripe_unit, self.stripe_count, self.object_size
            ))
        };
        let count = self.stripe_count;
        let set_size = self.object_size.checked_mul(count).ok_or_else(nonsense)?;
        let is_whole = self.object_size.checked_rem(self.stripe_unit) == Some(0);
        if !is_whole || set_size == 0 {
            return Err(nonsense());
        }
        if count == 1 {
            return Ok(contiguous_piece(size, self.object_size).into_iter().collect());
        }
        let file = ByteRange::new(0, size);
        let unit = self.stripe_unit;
        let mut pieces = Vec::new();
        let mut left = MAX_OBJECTS;
        for number in 0..size.div_ceil(set_size) {
            let set = ByteRange::at(number * set_size, set_size).intersect(file);
            let used = set.len().div_ceil(unit).min(count);
            let objects = used.min(left);
            // Of the last set within the limit only the first units are known.
            let range = if objects < used { ByteRange::at(set.start, objects * unit) } else { set };
            let first = number.checked_mul(count).ok_or_else(nonsense)?;
            let objects = (first..first.checked_add(objects).ok_or_else(nonsense)?).collect();
            pieces.push(StripedPiece { range: range.intersect(file), unit, objects });
            left -= pieces.last().map_or(0, |piece| piece.objects.len() as u64);
            if left == 0 {
                break;
            }
        }
        Ok(pieces)
    }
}

/// Objects that are filled one after the other; none for an empty file.
fn contiguous_piece(size: u64, object_size: u64) -> Option<StripedPiece> {
    let objects = size.div_ceil(object_size).min(MAX_OBJECTS);
    let range = ByteRange::new(0, size.min(objects.saturating_mul(object_size)));
    let piece = StripedPiece { range, unit: object_size, objects: (0..objects).collect() };
    (objects > 0).then_some(piece)
}

/// The layout in the extended attribute `ceph.file.layout`.
///
/// # Errors
/// If `output` has another form.
pub fn parse_layout(output: &str) -> Result<Layout> {
    // A pool's name comes last and may have spaces in it.
    let text = output.trim_end_matches(['\n', '\0']);
    let Some((numbers, pool)) = text.split_once(" pool=") else {
        return expected_error(1, "a layout, `stripe_unit=... pool=...`");
    };
    let (pool, namespace) = pool.rsplit_once(" pool_namespace=").unwrap_or((pool, ""));
    let is_invalid = |name: &str| name.chars().any(char::is_control);
    if pool.is_empty() || is_invalid(pool) || is_invalid(namespace) {
        return expected_error(1, "the pool's name after `pool=`");
    }
    let value = |key: &str| {
        let mut words = numbers.split_whitespace().filter_map(|word| word.split_once('='));
        let value = words.find(|(found, _)| *found == key).map(|(_, value)| value);
        match parse_number(1, value, &format!("`{key}=`"))? {
            0 => expected_error(1, &format!("`{key}=` above 0")),
            value => Ok(value),
        }
    };
    let layout = Layout {
        stripe_unit: value("stripe_unit")?,
        stripe_count: value("stripe_count")?,
        object_size: value("object_size")?,
        pool: pool.to_owned(),
        namespace: namespace.to_owned(),
    };
    if !layout.object_size.is_multiple_of(layout.stripe_unit) {
        return expected_error(1, "an `object_size` that is a multiple of `stripe_unit`");
    }
    Ok(layout)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) const LAYOUT: &str =
        include_str!("../../../tests/fixtures/placement/cephfs-layout.txt");
    const IN_NAMESPACE: &str =
        include_str!("../../../tests/fixtures/placement/cephfs-layout-namespace.txt");
    const M: u64 = 1 << 20;

    fn r(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    pub(in super::super) fn layout(
        stripe_unit: u64,
        stripe_count: u64,
        object_size: u64,
    ) -> Layout {
        let [pool, namespace] = ["p".to_owned(), String::new()];
        Layout { stripe_unit, stripe_count, object_size, pool, namespace }
    }

    #[test]
    fn alternating_objects_form_a_stripe() {
        let layout = layout(M, 2, 4 * M);
        let pieces = layout.pieces(13 * M).unwrap();
        let expected = [
            StripedPiece { range: r(0, 8 * M), unit: M, objects: vec![0, 1] },
            StripedPiece { range: r(8 * M, 13 * M), unit: M, objects: vec![2, 3] },
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn objects_are_limited() {
        let pieces = layout(4 * M, 1, 4 * M).pieces(u64::MAX).unwrap();
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].range, r(0, MAX_OBJECTS * 4 * M));
        let pieces = layout(1, 2 * MAX_OBJECTS, 1).pieces(u64::MAX).unwrap();
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].range, r(0, MAX_OBJECTS));
        assert!(layout(M, 1, M).pieces(0).unwrap().is_empty());
        assert!(layout(M, 2, M).pieces(0).unwrap().is_empty());
    }

    #[test]
    fn layouts_of_live_files_are_parsed() {
        let plain = parse_layout(LAYOUT).unwrap();
        assert_eq!((&*plain.pool, &*plain.namespace), ("cephfs_data", ""));
        assert_eq!(plain.object_size, 4 * M);
        let named = parse_layout(IN_NAMESPACE).unwrap();
        assert_eq!(named, Layout { namespace: "team-a".to_owned(), ..plain });
    }

    #[test]
    fn an_invalid_ceph_layout_is_refused() {
        let refused = |text: &str| {
            let error = parse_layout(text).unwrap_err().to_string();
            assert!(error.starts_with("line 1 of the answer: expected "), "{error}");
        };
        let pool = LAYOUT.find("cephfs_data").unwrap();
        for end in 0..=pool {
            refused(&LAYOUT[..end]);
        }
        refused(&LAYOUT.replace("stripe_count=1", "stripe_count=0"));
        refused(&LAYOUT.replace("unit=4194304", "unit=4194303"));
        refused(&LAYOUT.replace("unit=4194304", "unit=18446744073709551616"));
        refused(&LAYOUT.replace("cephfs_data", "a\nb"));
        refused(&IN_NAMESPACE.replace("team-a", "a\u{1f}b"));
        let far = parse_layout(&LAYOUT.replace("count=1", "count=9999999999999999")).unwrap();
        assert!(far.pieces(1).is_err());
    }
}
