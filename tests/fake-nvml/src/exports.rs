//! The functions of the C library, as `nvml.h` describes them.
#![allow(unsafe_code)]

mod ecc;
mod events;
mod fields;
mod find;
mod gpm;
mod identity;
mod memory;
mod mig;
mod pcie;
mod power;
mod processes;
mod speed;
mod system;

/// Exports functions that answer as the scenario wishes: `|call|` is the [`crate::call::Call`].
macro_rules! export {
    ($($(#[$about:meta])* fn $name:ident(|$call:ident| $($argument:ident: $type:ty),*) $body:block)*) => {$(
        $(#[$about])*
        ///
        /// # Safety
        /// As in `nvml.h`: each pointer is null, or good for what the function reads or writes there.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> ::nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::call::answer(stringify!($name), |$call: &$crate::call::Call| $body)
        }
    )*};
}
use export;

/// Exports functions that give one reading of a whole GPU: `|gpu|` is the [`crate::Gpu`], and the conversion one of
/// [`crate::call::Target`]'s.
macro_rules! export_readings {
    ($($(#[$about:meta])* fn $name:ident -> $type:ty: $convert:ident(|$gpu:ident| $value:expr);)*) => {
        $crate::exports::export! {$(
            $(#[$about])*
            fn $name(|call| device: ::nvml_wrapper_sys::bindings::nvmlDevice_t, reading: $crate::out::Out<$type>) {
                let target = call.whole_gpu(device)?;
                let $gpu = target.gpu();
                reading.put(target.$convert($value)?)
            }
        )*}
    };
}
use export_readings;
