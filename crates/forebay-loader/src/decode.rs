//! How images are decoded, as it travels: `forebay.wire.v1.DecodeOptions`.

use forebay_image::{DecodeOptions, Limits, Profile};
use forebay_proto::wire;

use crate::error::{Error, Result};

/// The options that a message asks for. Limits may be anything: who decodes for others has bounds of his own.
pub(crate) fn from_wire(decode: Option<&wire::DecodeOptions>) -> Result<DecodeOptions> {
    let mut options = DecodeOptions::default();
    let Some(decode) = decode else {
        return Ok(options);
    };
    options.profile = match wire::Profile::try_from(decode.profile) {
        Ok(wire::Profile::Pillow | wire::Profile::Unspecified) => Profile::Pillow,
        Ok(wire::Profile::Opencv) => Profile::OpenCv,
        Ok(wire::Profile::Tensorflow) => Profile::TensorFlow,
        Err(_) => {
            let expected = "1 (pillow), 2 (opencv) or 3 (tensorflow)";
            return Err(Error::option("profile", decode.profile, expected));
        }
    };
    options.exif = decode.exif_orientation;
    options.scaled = decode.dct_scaling;
    let or_default = |asked: u64, default: u64| if asked == 0 { default } else { asked };
    let default = Limits::default();
    options.limits.max_pixels = or_default(decode.max_pixels, default.max_pixels);
    options.limits.max_decoded_bytes =
        or_default(decode.max_image_bytes, default.max_decoded_bytes);
    Ok(options)
}

/// These options as a message; none for the default ones.
pub(crate) fn to_wire(options: &DecodeOptions) -> Option<wire::DecodeOptions> {
    if *options == DecodeOptions::default() {
        return None;
    }
    let profile = match options.profile {
        Profile::Pillow => wire::Profile::Pillow.into(),
        Profile::OpenCv => wire::Profile::Opencv.into(),
        Profile::TensorFlow => wire::Profile::Tensorflow.into(),
        // A profile that the wire has no word for is refused by the other side.
        _ => i32::MAX,
    };
    let default = Limits::default();
    let said = |limit: u64, default: u64| if limit == default { 0 } else { limit };
    Some(wire::DecodeOptions {
        profile,
        exif_orientation: options.exif,
        dct_scaling: options.scaled,
        max_pixels: said(options.limits.max_pixels, default.max_pixels),
        max_image_bytes: said(options.limits.max_decoded_bytes, default.max_decoded_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_way() {
        assert_eq!(from_wire(None).unwrap(), DecodeOptions::default());
        for profile in Profile::ALL {
            for (exif, scaled, pixels) in [(true, false, 5), (false, true, 1 << 40)] {
                let mut options = DecodeOptions::new(Limits::default());
                (options.profile, options.exif, options.scaled) = (profile, exif, scaled);
                options.limits.max_pixels = pixels;
                options.limits.max_decoded_bytes = pixels * 3;
                assert_eq!(from_wire(to_wire(&options).as_ref()).unwrap(), options);
            }
        }
    }

    #[test]
    fn an_unknown_profile_is_refused() {
        assert_eq!(to_wire(&DecodeOptions::default()), None);
        let message = wire::DecodeOptions {
            profile: 9,
            ..Default::default()
        };
        let error = from_wire(Some(&message)).unwrap_err().to_string();
        assert!(
            error.contains("profile is 9") && error.contains("opencv"),
            "{error}"
        );
    }
}
