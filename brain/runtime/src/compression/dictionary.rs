//! Dictionaries of Zstandard: what many values have in common, which is then in none of their frames.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::OnceLock;

use bytes::Bytes;
use zstd::zstd_safe::{CDict, DDict, get_dict_id};

use super::{LEVEL, compress_with, decompress_with};

/// Shorter content is not worth it, even with a dictionary: it is mostly numbers and names, which differ.
pub const MIN_BYTES_WITH_DICTIONARY: usize = 256;

/// Sizes of dictionaries that are tried, in bytes. Few samples fill no long one.
const SIZES: [usize; 2] = [32 << 10, 64 << 10];

/// A dictionary that frames refer to by its id.
pub struct Dictionary {
    id: NonZeroU32,
    content: Bytes,
    /// Made when it is first needed: those that were replaced are only read with.
    compressing: OnceLock<Option<CDict<'static>>>,
    decompressing: DDict<'static>,
}

impl Dictionary {
    /// Returns the dictionary with this content; `None` if it is none.
    #[must_use]
    pub fn new(content: Bytes) -> Option<Self> {
        Some(Self {
            id: get_dict_id(&content)?,
            compressing: OnceLock::new(),
            decompressing: DDict::try_create(&content)?,
            content,
        })
    }

    /// Returns a dictionary of what these samples have in common; `None` if that is too little, or if there are too few samples. Takes
    /// about 100 ms for 2 MiB of them.
    #[must_use]
    pub fn train(samples: &[Bytes]) -> Option<Self> {
        // Every other one tells which dictionary fits what it was not made of.
        let of = |odd: usize| samples.iter().skip(odd).step_by(2);
        let made: Vec<&Bytes> = of(0).collect();
        let trained = SIZES.iter().filter_map(|size| {
            let content = zstd::dict::from_samples(&made, *size).ok()?;
            Self::new(content.into())
        });
        trained.min_by_key(|dictionary| of(1).map(|sample| dictionary.size_of(sample)).sum::<usize>())
    }

    /// The id by which frames refer to it.
    #[must_use]
    pub fn id(&self) -> NonZeroU32 {
        self.id
    }

    /// The bytes that [`Dictionary::new`] takes.
    #[must_use]
    pub fn content(&self) -> &Bytes {
        &self.content
    }

    /// Returns a frame with this content; `None` if it is short or does not compress well.
    #[must_use]
    pub fn compress(&self, content: &[u8]) -> Option<Bytes> {
        let made = || CDict::try_create(&self.content, LEVEL);
        let dictionary = self.compressing.get_or_init(made).as_ref()?;
        compress_with(content, MIN_BYTES_WITH_DICTIONARY, |context, frame| {
            context.compress_using_cdict(frame, content, dictionary)
        })
    }

    /// Returns a frame's content; `None` if this is no frame that [`Dictionary::compress`] made.
    #[must_use]
    pub fn decompress(&self, frame: &[u8]) -> Option<Bytes> {
        decompress_with(frame, |context, content| {
            context.decompress_using_ddict(content, frame, &self.decompressing)
        })
    }

    /// Bytes that content takes with this dictionary: those of its frame, or its own.
    #[must_use]
    pub fn size_of(&self, content: &[u8]) -> usize {
        self.compress(content).map_or(content.len(), |frame| frame.len())
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.content.len();
        f.debug_struct("Dictionary")
            .field("id", &self.id)
            .field("bytes", &len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{compress, content_size, decompress, dictionary_id};
    use super::*;

    /// Objects that differ in a few words.
    fn objects(count: usize) -> Vec<Bytes> {
        let object = |number: usize| {
            let fields = (0..40).map(|field| format!("field{field}: value-{}, ", field * 7919 % 1000));
            format!(
                "name: pod-{number}, node: node-{}, {}",
                number % 17,
                fields.collect::<String>()
            )
            .into()
        };
        (0..count).map(object).collect()
    }

    #[test]
    fn similar_objects_need_little_beside_their_dictionary() {
        let dictionary = Dictionary::train(&objects(2_000)).unwrap();
        for object in objects(2_100).split_off(2_000) {
            let frame = dictionary.compress(&object).unwrap();
            let alone = compress(&object).map_or(object.len(), |frame| frame.len());
            assert!(frame.len() < alone / 4, "{} of {alone} bytes", frame.len());
            assert_eq!(dictionary_id(&frame), Some(dictionary.id()));
            assert_eq!(content_size(&frame), u32::try_from(object.len()).ok());
            assert_eq!(dictionary.decompress(&frame), Some(object.clone()));
            assert_eq!(decompress(&frame), None, "without its dictionary");
            assert_eq!(dictionary.compress(&object[..MIN_BYTES_WITH_DICTIONARY - 1]), None);
        }
    }

    #[test]
    fn a_dictionary_survives_being_stored() {
        let dictionary = Dictionary::train(&objects(2_000)).unwrap();
        let object = &objects(1)[0];
        let frame = dictionary.compress(object).unwrap();
        let stored = Dictionary::new(dictionary.content().clone()).unwrap();
        assert_eq!(stored.id(), dictionary.id());
        assert_eq!(stored.decompress(&frame).as_ref(), Some(object));
    }

    #[test]
    fn frames_of_another_dictionary_are_refused() {
        let one = Dictionary::train(&objects(2_000)).unwrap();
        let reversed = objects(2_000)
            .into_iter()
            .map(|object| object.iter().rev().copied().collect());
        let other = Dictionary::train(&reversed.collect::<Vec<Bytes>>()).unwrap();
        assert_ne!(one.id(), other.id());
        let frame = one.compress(&objects(1)[0]).unwrap();
        assert_eq!(other.decompress(&frame), None);
    }

    #[test]
    fn there_is_no_dictionary_of_nothing() {
        assert!(Dictionary::train(&[]).is_none());
        assert!(Dictionary::train(&objects(2)).is_none());
        assert!(Dictionary::new(Bytes::from_static(b"no dictionary")).is_none());
    }
}
