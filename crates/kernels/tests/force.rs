//! Choosing the kernels, in a process of its own: it can be done only once.

use foldcast_kernels::{Fold, Level, LevelError, dispatch, force};
use types::{DataType, Reduction};

#[test]
fn the_level_can_be_chosen_before_the_first_use() {
    assert_eq!(force(Level::Portable), Ok(()));
    assert_eq!(dispatch(), "portable");
    assert_eq!(Fold::new(DataType::Float32, Reduction::Sum).level(), Level::Portable);
    for level in Level::ALL {
        let expected = match level {
            Level::Portable => Ok(()),
            _ if level.is_available() => Err(LevelError::Chosen { asked: level, chosen: Level::Portable }),
            _ => Err(LevelError::Unavailable(level)),
        };
        assert_eq!(force(level), expected);
    }
    assert_eq!(dispatch(), "portable");
}
