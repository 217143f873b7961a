//! The number that identifies a mount and its FUSE connection.

use serde::{Deserialize, Serialize};

/// Major and minor device number of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeviceNumber(u32, u32);

impl From<(u32, u32)> for DeviceNumber {
    fn from(mount_table: (u32, u32)) -> Self {
        Self(mount_table.0, mount_table.1)
    }
}

impl From<DeviceNumber> for (u32, u32) {
    fn from(number: DeviceNumber) -> Self {
        (number.0, number.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Daemons and keepers of other versions read this form.
    #[test]
    fn a_device_number_is_serialized_as_two_numbers() {
        let number = DeviceNumber::from((0, 43));
        assert_eq!(serde_json::to_string(&number).unwrap(), "[0,43]");
        assert_eq!(
            postcard::to_stdvec(&number).unwrap(),
            postcard::to_stdvec(&(0_u32, 43_u32)).unwrap()
        );
    }
}
