# Packages of this build, by component (packaging/make-packages.sh): Debian packages for the release on which it was built, with
# that release's libraries. CMAKE_INSTALL_PREFIX is /usr then.
file(STRINGS /etc/os-release debian REGEX "^VERSION_ID=")
string(REGEX REPLACE "[^0-9.]" "" debian "${debian}")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME modelet)
set(CPACK_PACKAGE_VENDOR "The Modelet developers")
set(CPACK_PACKAGE_CONTACT "The Modelet developers <maintainers@users.noreply.a-seed-8a3dca20.example>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL client agent scheduler development)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/packaging/debian/complete.cmake")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE "1+deb${debian}")
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Programs of neighbouring versions work together, but those of one machine are installed together.
set(modelet_same "= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")
set(control "${PROJECT_SOURCE_DIR}/packaging/debian")

set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME modelet)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION science)
set(CPACK_DEBIAN_CLIENT_PACKAGE_RECOMMENDS "modelet-agent, modelet-scheduler")
set(CPACK_DEBIAN_CLIENT_DESCRIPTION "very wide neural networks on idle, ordinary CPU machines
Trains neural networks with a very wide output layer, a label for every
product, law, package or word, on ordinary machines with idle cores.
.
This package has the program modelet: it trains on this machine, submits runs
to a pool of machines, and uses trained models. The documents and an example
data set are in /usr/share/doc/modelet.")

set(CPACK_DEBIAN_AGENT_PACKAGE_NAME modelet-agent)
set(CPACK_DEBIAN_AGENT_PACKAGE_SECTION science)
set(CPACK_DEBIAN_AGENT_PACKAGE_DEPENDS "adduser")
set(CPACK_DEBIAN_AGENT_PACKAGE_RECOMMENDS "modelet")
set(CPACK_DEBIAN_AGENT_PACKAGE_CONTROL_EXTRA "${control}/agent/postinst;${control}/agent/prerm;${control}/agent/postrm")
set(CPACK_DEBIAN_AGENT_DESCRIPTION "lends this machine to a pool that trains neural networks
The agent takes part in the runs of a Modelet pool with the cores and the
memory that its owner lends. It makes room when others want the machine, and
leaves without harm to its run at any time.
.
The agent's service starts once the machine has joined a pool.")

set(CPACK_DEBIAN_SCHEDULER_PACKAGE_NAME modelet-scheduler)
set(CPACK_DEBIAN_SCHEDULER_PACKAGE_SECTION science)
set(CPACK_DEBIAN_SCHEDULER_PACKAGE_DEPENDS "adduser, modelet (${modelet_same})")
set(CPACK_DEBIAN_SCHEDULER_PACKAGE_CONTROL_EXTRA
    "${control}/scheduler/postinst;${control}/scheduler/prerm;${control}/scheduler/postrm;${control}/scheduler/conffiles")
set(CPACK_DEBIAN_SCHEDULER_DESCRIPTION "places training runs on the machines of a Modelet pool
The scheduler of a pool knows its agents and its runs, places the runs on the
agents, and keeps data and checkpoints for them.
.
The service starts when the package is installed. It has a key of its own, and
at first nobody may connect.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libmodelet-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libzmq3-dev, cppzmq-dev, libflatbuffers-dev, liblz4-dev, libxxhash-dev, libsodium-dev, libsqlite3-dev, libtbb-dev, libhwy-dev, libboost-dev, libboost-context-dev, libboost-iostreams-dev, libspdlog-dev, nlohmann-json3-dev, libcli11-dev, libtomlplusplus-dev, pkg-config")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "very wide neural networks on idle CPU machines - C++ library
Trains neural networks with a very wide output layer on ordinary machines, and
uses the trained models, from C++.
.
This package has the headers, the static libraries and the CMake package
modelet.")

if(MODELET_BUILD_PYTHON)
  list(APPEND CPACK_COMPONENTS_ALL python3)
  set(CPACK_DEBIAN_PYTHON3_PACKAGE_NAME python3-modelet)
  set(CPACK_DEBIAN_PYTHON3_PACKAGE_SECTION python)
  find_package(Python REQUIRED COMPONENTS Interpreter)
  math(EXPR next "${Python_VERSION_MINOR} + 1")
  set(CPACK_DEBIAN_PYTHON3_PACKAGE_DEPENDS
      "modelet (${modelet_same}), python3 (>= 3.${Python_VERSION_MINOR}), python3 (<< 3.${next}), python3-numpy, python3-scipy")
  set(CPACK_DEBIAN_PYTHON3_PACKAGE_RECOMMENDS "modelet-agent, modelet-scheduler")
  set(CPACK_DEBIAN_PYTHON3_PACKAGE_SUGGESTS "python3-sklearn (>= 1.6)")
  set(CPACK_DEBIAN_PYTHON3_PACKAGE_CONTROL_EXTRA "${control}/python3/postinst;${control}/python3/prerm")
  set(CPACK_DEBIAN_PYTHON3_DESCRIPTION "very wide neural networks on idle CPU machines - Python package
Trains neural networks with a very wide output layer on ordinary machines, and
uses the trained models, from Python: experiments, models, and with
scikit-learn 1.6 a classifier.")
endif()
include(CPack)
